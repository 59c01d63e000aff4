"""The Redis keys of the command line, spelled in this one place; those of the queue are ``schemas.keys``'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipfleet.schemas.keys import QueueKeys

__all__ = ["claim_key"]


def claim_key(keys: QueueKeys, collection: str) -> str:
    """String: the run that reindexes into a new collection, see ``claims``; beside the keys of Celery's runs."""
    return f"{keys.base}index:into:{collection}"
