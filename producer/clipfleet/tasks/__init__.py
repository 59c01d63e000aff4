"""Celery tasks over a fleet: what any service with a Celery app calls by name, with JSON alone (docs/celery.md).

::

    REDIS_URL=redis://localhost:6379 celery -A clipfleet.tasks worker

    app.send_task("clipfleet.search", kwargs={"text": "a red heart", "limit": 3}, queue="clipfleet").get()
"""

from __future__ import annotations

from clipfleet.tasks.app import app

__all__ = ["app"]
