"""What a few tasks ask Milvus itself: how many rows there are, a collection's columns, an alias, and its switch."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clipfleet.cli.declaring import carried, declare
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.text import counted
from clipfleet.tasks.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.store import Field, Store
    from clipfleet.tasks.plan import Plan

__all__ = ["declare_columns", "opened", "stood", "switched"]


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


def stood(plan: Plan) -> Plan:
    """The plan of a reindexing that begins, with the typed columns of what the alias stands for, and with its name.

    Raises:
        ValueError: the alias' name is a collection's; the new collection is there already, and would be mixed with.
        RequestFailed: ``bad_request``: no collection can have such a column; and as ``opened`` has it.
    """
    with opened() as store:
        old = store.describe(plan.alias)
        if old is not None and old.name == plan.alias:
            raise ValueError(f"{plan.alias!r} is a collection itself, and Milvus gives no alias the name of one")
        if store.describe(plan.collection) is not None:
            raise ValueError(f"there is a collection or alias {plan.collection!r} already: name one that is not there")
    plan = replace(plan, fields=carried(old, plan.fields), before="" if old is None else old.name)
    _columns(plan)
    return plan


def declare_columns(plan: Plan) -> None:
    """Make the plan's collection with its typed columns, if it has any; nothing happens where it is there with them.

    Workers would make it at the first row, without columns, and it never gets any afterwards.

    Raises:
        RequestFailed: ``bad_request``: it is there without them, or no collection can have them; ``model_mismatch``;
            ``unavailable``: no worker has ever said which model it is; and as ``opened`` has it.
    """
    if not plan.fields:
        return
    with opened() as store:
        declare(store, settings().fleet, plan.collection, _columns(plan))


def _columns(plan: Plan) -> list[Field]:
    from clipfleet.store import Field  # noqa: PLC0415  numpy: few need it

    return [Field(name, kind) for name, kind in plan.fields.items()]  # type: ignore[arg-type]


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
    why, before = "; ".join(gave_up) or _doubt(plan, done), ""
    if not why:
        try:
            with opened() as store:
                why, before = _switch(store, alias, plan["collection"], plan.get("before"))
        except RequestFailed as error:
            if error.retryable:
                raise
            why = error.message
    return (
        {"alias": alias, "switched": False, "why": why} if why else {"alias": alias, "switched": True, "before": before}
    )


def _switch(store: Store, alias: str, new: str, before: str | None) -> tuple[str, str]:
    """(why the alias was left alone, or nothing; what it stood for).

    Another run that began later may have come to its end earlier: its collection is the newer one.
    """
    found = store.describe(alias)
    stands = "" if found is None else found.name
    if stands == new:
        return "", before or ""  # whoever switched it was killed before it could say so
    if before is not None and stands != before:
        return f"{alias!r} stands for {stands!r} by now, which somebody has switched it to since this run began", ""
    return "", store.switch(alias, new)


def _doubt(plan: dict[str, Any], done: dict[str, Any]) -> str:
    """Why the new collection may lack what the old one has; empty where it does not, or where that may be."""
    most, failed = plan["max_failed"], sum(done["failed"].values())
    if not done["indexed"]:
        return "nothing is indexed"
    if mixed := done["failed"].get(ErrorCode.MODEL_MISMATCH, 0):
        return f"{mixed:,} came from workers of another model than those before, whose the new collection is"
    if failed > most * (failed + done["indexed"]):
        return f"{failed} failed, more than {most:.2%}"
    if done["incomplete"] and most < 1:
        one, many = "shard, table or folder is", "shards, tables or folders are"
        return (
            f"{counted(done['incomplete'], one, many)} incomplete, cannot be read or gave nothing:"
            " nobody knows how many pictures are missing"
        )
    return ""
