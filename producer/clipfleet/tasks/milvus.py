"""What a few tasks ask Milvus itself: how many rows there are, and to let an alias stand for another collection."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.tasks.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.store import Store

__all__ = ["opened", "switched"]


@contextmanager
def opened() -> Iterator[Store]:
    """The store that the environment names.

    Raises:
        RequestFailed: ``bad_request``: none is named, or its package is missing; ``store_failed``: not now.
    """
    fleet = settings().fleet
    if not fleet.milvus_uri:
        raise error_for(ErrorCode.BAD_REQUEST, "no MILVUS_URI in this Celery worker's environment")
    try:
        from clipfleet.store import Store, StoreConfig, StoreUnavailable  # noqa: PLC0415  numpy, pymilvus: few need it

        store = Store(StoreConfig(fleet.milvus_uri, fleet.milvus_token, fleet.milvus_ca_file))
    except ModuleNotFoundError as error:
        raise error_for(ErrorCode.BAD_REQUEST, f'{error.name} is missing: pip install "clipfleet[worker]"') from None
    try:
        yield store
    except StoreUnavailable as error:
        raise error_for(ErrorCode.STORE_FAILED, error.message) from None
    finally:
        store.close()


def switched(plan: dict[str, Any], done: dict[str, Any], gave_up: list[str]) -> dict[str, Any]:
    """Let the run's alias stand for its collection, if it has one and the run went well; what the result says of it.

    Args:
        plan: of the run.
        done: its totals.
        gave_up: why shards did not come to their end.

    Raises:
        RequestFailed: ``store_failed``: Milvus is away; it is to be tried again.
    """
    alias = plan["alias"]
    if not alias:
        return {}
    if why := "; ".join(gave_up) or _doubt(plan, done):
        return {"alias": alias, "switched": False, "why": why}
    try:
        with opened() as store:
            before = store.switch(alias, plan["collection"])
    except RequestFailed as error:
        if error.retryable:
            raise
        return {"alias": alias, "switched": False, "why": error.message}
    return {"alias": alias, "switched": True, "before": before}


def _doubt(plan: dict[str, Any], done: dict[str, Any]) -> str:
    """Why the new collection may lack what the old one has; empty where it does not, or where that may be."""
    most, failed = plan["max_failed"], sum(done["failed"].values())
    if not done["indexed"]:
        return "nothing is indexed"
    if mixed := done["failed"].get(ErrorCode.MODEL_MISMATCH, 0):
        return f"{mixed} came from workers of another model than those before, whose the new collection is"
    if failed > most * (failed + done["indexed"]):
        return f"{failed} failed, more than {most:.2%}"
    if done["incomplete"] and most < 1:
        return (
            f"{done['incomplete']} shards, tables or folders are incomplete, cannot be read or gave nothing:"
            " nobody knows how many pictures are missing"
        )
    return ""
