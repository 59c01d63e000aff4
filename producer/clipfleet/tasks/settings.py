"""What a Celery worker of ours runs with: the fleet's own settings, and a few of its own."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from clipfleet.cli.settings import Flags, load
from clipfleet.producer.connection.address import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clipfleet.cli.settings import Settings

__all__ = ["CELERY_QUEUE", "TaskSettings", "celery_config", "read", "settings"]

CELERY_QUEUE: Final = "clipfleet"
# Far above what a task takes (docs/celery.md, "Redelivery"), and well below Celery's own hour.
VISIBILITY_S: Final = 900


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Read once.

    Attributes:
        fleet: where the fleet is.
        broker_url: Celery's broker.
        result_backend: where Celery keeps results.
        queue: the Celery queue that our tasks are sent to.
        sources_root: sources of ``index_corpus`` are relative to this folder and never lie outside of it.
        sources_addresses: what addresses of stores (``s3://bucket/folder``) sources may begin with.
    """

    fleet: Settings
    broker_url: str = field(repr=False)
    result_backend: str = field(repr=False)
    queue: str
    sources_root: Path
    sources_addresses: tuple[str, ...] = ()


def read(environ: Mapping[str, str]) -> TaskSettings:
    """The settings that ``environ`` holds.

    Raises:
        CliError: for a URL or a name that cannot be one.
    """
    fleet = load(Flags(), environ)
    broker = environ.get("CLIPFLEET_CELERY_BROKER_URL") or environ.get("CELERY_BROKER_URL") or _beside(fleet.redis_url)
    backend = environ.get("CLIPFLEET_CELERY_RESULT_BACKEND") or environ.get("CELERY_RESULT_BACKEND") or broker
    return TaskSettings(
        fleet=fleet,
        broker_url=broker,
        result_backend=backend,
        queue=environ.get("CLIPFLEET_CELERY_QUEUE") or CELERY_QUEUE,
        sources_root=Path(environ.get("CLIPFLEET_SOURCES_ROOT") or "."),
        sources_addresses=tuple(environ.get("CLIPFLEET_SOURCES_ADDRESSES", "").split()),
    )


@functools.cache
def settings() -> TaskSettings:
    """Those of this process."""
    return read(os.environ)


def _beside(redis_url: str) -> str:
    """The next database of the fleet's Redis, so that ``FLUSHDB`` and ``KEYS`` of the one never meet the other."""
    parts, following = urlsplit(redis_url), parse_url(redis_url).db + 1
    if parts.scheme == "unix":
        return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={following}"
    options = dict(parse_qsl(parts.query))
    options.pop("db", None)
    if parts.scheme == "rediss":
        # Celery refuses it without a word on certificates.
        options.setdefault("ssl_cert_reqs", "CERT_REQUIRED")
    return urlunsplit(parts._replace(path=f"/{following}", query=urlencode(options)))


def celery_config() -> dict[str, Any]:
    """Celery's configuration for these settings."""
    own = settings()
    return {
        "broker_url": own.broker_url,
        "result_backend": own.result_backend,
        "task_default_queue": own.queue,
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "result_expires": 24 * 3600,
        # A killed worker's task is run again; each one of ours may be.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        # What is prefetched waits behind what runs, and its visibility timeout runs meanwhile.
        "worker_prefetch_multiplier": 1,
        "broker_connection_retry_on_startup": True,
        # What runs when the broker is lost ends by itself; a second run of it is recognised (runs.py).
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_transport_options": {
            "visibility_timeout": VISIBILITY_S,
            # By default all workers of a broker share one table of what is unacknowledged, and the shortest timeout
            # among them holds for all: ours must not restart the hour-long tasks of the app whose broker we share.
            "unacked_key": f"{own.queue}.unacked",
            "unacked_index_key": f"{own.queue}.unacked_index",
            "unacked_mutex_key": f"{own.queue}.unacked_mutex",
            "unacked_restore_throttle": 1,
        },
    }
