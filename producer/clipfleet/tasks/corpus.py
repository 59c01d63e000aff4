"""``clipfleet.index_corpus``: a corpus as a chain of short tasks for each of its shards.

A task per picture would cost more than the picture, and one task for all of them could neither be stopped, nor moved,
nor survive its worker. So the first task only makes the plan, and each step of a shard sends the next one.
"""

from __future__ import annotations

import functools
import logging
import re
import uuid
from contextlib import suppress
from typing import Any, Final

import redis
from celery.exceptions import BackendError, Ignore
from kombu.exceptions import OperationalError

from clipfleet.index.sources import SourceError
from clipfleet.index.typed import FIELD_TYPES
from clipfleet.schemas.errors import RequestFailed
from clipfleet.tasks.fleet import bulk_client
from clipfleet.tasks.milvus import declare_columns, stood
from clipfleet.tasks.plan import Plan, digest, make_plan
from clipfleet.tasks.results import show
from clipfleet.tasks.runs import LEASE_MS, Lost, Runs
from clipfleet.tasks.settings import settings
from clipfleet.tasks.state import REVOKED, RUNNING, Run, Shard
from clipfleet.tasks.step import Keeper, Step

__all__ = [
    "AWAY",
    "RUN_HEADER",
    "TASKS_HEADER",
    "index_corpus",
    "index_shard",
    "reindex",
    "resume_index",
    "revoke_run",
    "runs",
    "stop_index",
]

# What a step's message says of its run, for who sees the message alone (app.py).
RUN_HEADER: Final = "clipfleet_run"
TASKS_HEADER: Final = "clipfleet_tasks"
STEP: Final = "clipfleet.index_shard"
_MOST_SHARDS: Final = 256
_STALLED_S: Final = 10.0
_MOST_RETRIES: Final = 10
# A message may wait behind others for a while: only what nothing was sent for so long is asked for once more.
_QUIET_MS: Final = 300_000
# Trouble that passes and says nothing of the shard.
AWAY: Final = (redis.exceptions.RedisError, OperationalError, BackendError, OSError)
# Of a collection or an alias, as Milvus has them.
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_log = logging.getLogger(__name__)


@functools.cache
def runs() -> Runs:
    """The runs of this process's queue."""
    fleet = settings().fleet
    return Runs(redis.Redis.from_url(fleet.redis_url, socket_timeout=10), fleet.keys)


def index_corpus(  # noqa: PLR0913 - what the task takes, all by name
    self: Any,
    sources: list[str] | str,
    collection: str = "images",
    *,
    shards: int = 4,
    columns: dict[str, str] | None = None,
    fields: dict[str, str] | None = None,
    key: str | None = None,
    step_s: float = 20.0,
    patience_s: float = 12 * 3600.0,
) -> None:
    """Index folders, patterns, shards and tables; see docs/celery.md.

    Args:
        self: the task.
        sources: names below ``CLIPFLEET_SOURCES_ROOT``, as ``clipfleet index`` takes them.
        collection: where the rows go.
        shards: how many chains of steps share the work, at most 256.
        columns: of tables: ``url``, ``path``, ``id``, ``root``.
        fields: metadata keys by type (int, float, bool, str) that the collection keeps in columns (``MILVUS_URI``).
        key: runs of one key are one run while it goes on; None = made of sources, collection, columns and fields.
        step_s: seconds for which a step sends.
        patience_s: seconds for which nobody may take a shard's pictures before it gives up.

    Raises:
        Ignore: the run goes on; its steps keep this task's state.
        ValueError: a source or an option that cannot be; ``FileNotFoundError`` for one that is not there.
    """
    asked = {"sources": sources, "collection": collection, "columns": columns} | ({"fields": fields} if fields else {})
    options = {"shards": shards, "columns": columns or {}, "step_s": step_s, "patience_s": patience_s}
    asked = asked if key is None else {"key": key}
    _begin(self, asked, sources, collection=collection, fields=fields or {}, **options)


def reindex(  # noqa: PLR0913 - what the task takes, all by name
    self: Any,
    sources: list[str] | str,
    alias: str,
    *,
    collection: str | None = None,
    max_failed: float = 0.01,
    shards: int = 4,
    columns: dict[str, str] | None = None,
    fields: dict[str, str] | None = None,
    step_s: float = 20.0,
    patience_s: float = 12 * 3600.0,
) -> None:
    """Index into a new collection, and let ``alias`` stand for it when all is there: searches never see half of it.

    Args:
        self: the task.
        sources: as ``index_corpus`` has them, and so are the options that are not named here.
        alias: what searches name. It stands for the old collection until then, which is kept.
        collection: the new one, which must not be there; None = the alias and a part of this task's id.
        max_failed: where a larger part of the pictures failed the alias is left as it is.
        shards: as above.
        columns: as above.
        fields: as above; the old collection's columns are carried over besides.
        step_s: as above.
        patience_s: as above.

    Raises:
        Ignore: as above.
        ValueError: as above; no ``MILVUS_URI``, which the switch needs; the alias' name is a collection's, or the new
            collection is there.
    """
    if not _is_name(alias) or not _is_number(max_failed) or not 0 <= max_failed <= 1:
        raise ValueError("reindex needs an alias, and max_failed is 0 to 1")
    asked = {"alias": alias, "sources": sources, "columns": columns} | ({"fields": fields} if fields else {})
    options = {"shards": shards, "columns": columns or {}, "step_s": step_s, "patience_s": patience_s}
    new = collection or f"{alias}_{self.request.id[:8]}"
    if new == alias:
        # Searches would see half of it, or the alias' name be a collection's for ever.
        raise ValueError(f"collection is the new one, and needs another name than the alias {alias!r}")
    _begin(self, asked, sources, collection=new, alias=alias, max_failed=max_failed, fields=fields or {}, **options)


def _begin(task: Any, asked: dict[str, Any], sources: list[str] | str, **options: Any) -> None:
    """Make the plan, send the first step of each shard; or join the run that was asked for in the same words."""
    names = [sources] if isinstance(sources, str) else sources
    _check(names, **options)
    try:
        plan = make_plan(names, settings().sources_root, settings().sources_addresses, **options)
        # What there is of a run that goes on is that run's own.
        if runs().find(digest(asked), task.request.id) is None:
            plan = _with_columns(task, plan)
    except SourceError as error:
        # A caller without clipfleet gets the class that it can name.
        raise ValueError(str(error)) from None
    run, known, is_new = runs().begin(digest(asked), plan.to_json(), task.request.id)
    if (
        is_new
        and plan.alias
        and (
            any(at != run and each.plan["collection"] == plan.collection for at, each in _unfinished())
            or runs().is_claimed(run, plan.collection)
        )
    ):
        # Begun at the same time, when it was not there yet: looked for afterwards, so that one of two sees the other.
        runs().end(run, REVOKED)
        raise ValueError(f"another run indexes into {plan.collection!r}: name a collection of its own")
    if is_new:
        for number in range(plan.shards):
            _send(task.app, run, number, 0)
    elif known.state == RUNNING:
        _ask_again(task.app, run, known, -LEASE_MS)
    with suppress(RequestFailed):  # the step of a shard that has ended sees to it
        show(task.app, runs(), run)
    raise Ignore


def _with_columns(task: Any, plan: Plan) -> Plan:
    """What Milvus must know, or tell, before a run begins. Where it is away the task comes again."""
    try:
        if plan.alias:
            return stood(plan)  # the columns wait for the first step: this message may come twice
        declare_columns(plan)
    except RequestFailed as error:
        if not error.retryable:
            raise ValueError(error.message) from None
        tries = int(plan.patience_s / _STALLED_S)
        raise task.retry(countdown=_STALLED_S, max_retries=tries, exc=RuntimeError(str(error))) from None
    return plan


def index_shard(self: Any, run: str, number: int, turn: int) -> None:
    """One step of a shard, which sends the next one. Nobody's to call."""
    try:
        _step(self, run, number, turn)
        show(self.app, runs(), run)
    except RequestFailed as error:
        _log.warning("run %s is done, but its alias is not switched yet: %s", run, error)
        raise self.retry(countdown=_STALLED_S, max_retries=None) from None
    except AWAY:
        # Before its claim and after its end as well: what is not sent again then is the chain's end.
        _log.exception("run %s, shard %d: Redis, the broker or the result backend does not answer", run, number)
        raise self.retry(countdown=_STALLED_S, max_retries=None) from None


def _step(self: Any, run: str, number: int, turn: int) -> None:
    owner = uuid.uuid4().hex
    known = runs().get(run)
    if known is None or known.state != RUNNING:
        return
    shard, wait_ms = runs().claim(run, number, turn, owner)
    if shard is None:
        if wait_ms:
            raise self.retry(countdown=wait_ms / 1000 + 0.1, max_retries=None)
        return
    try:
        with Keeper(lambda: runs().renew(run, number, owner)) as keeper:
            _run_step(self.app, run, number, shard, known, keeper)
    except Lost:
        _log.warning("run %s, shard %d: somebody else goes on with it", run, number)
    except AWAY:
        raise  # nothing that the shard is to blame for
    except RequestFailed as error:
        _log.warning("run %s, shard %d: %s", run, number, error)
        if error.retryable:
            raise self.retry(countdown=_STALLED_S, max_retries=None) from None
        runs().release(run, number, owner, turn=turn, ended=error.message)
    except Exception as error:  # noqa: BLE001 - whatever it is: a shard that nobody ends would be waited for for ever
        _log.exception("run %s, shard %d: unforeseen", run, number)
        if self.request.retries < _MOST_RETRIES:
            raise self.retry(countdown=_STALLED_S, max_retries=None) from None
        runs().release(run, number, owner, turn=turn, ended=f"unforeseen: {type(error).__name__}; see the log")
    _ask_again(self.app, run, known, _QUIET_MS)


def _run_step(app: Any, run: str, number: int, shard: Shard, known: Run, keeper: Keeper) -> None:
    plan = Plan.of(known.plan)
    root = settings().sources_root
    if shard.turn == 0:
        declare_columns(plan)
    step = Step(plan=plan, runs=runs(), run=run, number=number, shard=shard, root=root, stop=keeper.stop)
    step.run(bulk_client(), lambda: show(app, runs(), run))
    now = runs().now_ms()
    if not step.over and not step.moved:
        shard.stalls += 1
        if now - shard.moved_ms > plan.patience_s * 1000:
            shard.ended = f"nobody took its pictures for {plan.patience_s:.0f} s"
    if step.over:
        shard.ended = "done"
    runs().save(run, number, shard)
    if not shard.ended:
        _send(app, run, number, shard.turn + 1, 0.0 if step.moved else _STALLED_S)
        runs().release(run, number, shard.owner, turn=shard.turn + 1)


def stop_index(self: Any, task_id: str) -> dict[str, Any]:
    """Stop the run that an ``index_corpus`` task asked for: its steps end within seconds."""
    stopped = [run for run, known in _unfinished() if task_id in known.tasks and revoke_run(self.app, run)]
    return {"ok": bool(stopped), "stopped": stopped}


def resume_index(self: Any, *, quiet_s: float = _QUIET_MS / 1000) -> dict[str, Any]:
    """Send a step for each shard that should go on and of which nothing was heard for ``quiet_s``: for beat."""
    sent = {}
    for run, known in _unfinished():
        sent[run] = _ask_again(self.app, run, known, int(quiet_s * 1000))
        # All of its shards may have ended, and their last owner been killed before it said so.
        with suppress(RequestFailed):
            show(self.app, runs(), run)
    return {"ok": True, "runs": sent}


def revoke_run(app: Any, run: str) -> bool:
    """End a run as revoked; false when it had ended before."""
    ended = runs().end(run, REVOKED)
    show(app, runs(), run)
    return ended


def _unfinished() -> list[tuple[str, Run]]:
    return [(run, known) for run in runs().unfinished() if (known := runs().get(run)) is not None]


def _send(app: Any, run: str, number: int, turn: int, countdown_s: float = 0.0) -> None:
    known = runs().get(run)
    if known is None or known.state != RUNNING:
        return
    app.send_task(
        STEP,
        (run, number, turn),
        countdown=countdown_s or None,
        ignore_result=True,
        headers={RUN_HEADER: run, TASKS_HEADER: known.tasks},
    )


def _ask_again(app: Any, run: str, known: Run, quiet_ms: int) -> int:
    sent = 0
    for number in range(known.plan["shards"]):
        if (turn_wait := runs().ask_again(run, number, quiet_ms)) is not None:
            turn, wait_ms = turn_wait
            _send(app, run, number, turn, wait_ms / 1000)
            sent += 1
    return sent


def _check(
    names: Any, *, collection: Any, shards: Any, columns: Any, fields: Any, step_s: Any, patience_s: Any, **more: Any
) -> None:
    """Refuse what JSON can hold and no run can be: else each step, or each picture, would fail of it."""
    if (fields or more.get("alias")) and not settings().fleet.milvus_uri:
        raise ValueError("reindex and fields need MILVUS_URI in this Celery worker's environment")
    if not names or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("sources is a list of names")
    if not _is_name(collection):
        raise ValueError(f"a collection is letters, digits and _, not starting with a digit, not {collection!r:.80}")
    if type(shards) is not int or not 1 <= shards <= _MOST_SHARDS:
        raise ValueError(f"shards is 1 to {_MOST_SHARDS}, not {shards!r}")
    if not isinstance(columns, dict) or not all(isinstance(value, str) for value in columns.values()):
        raise ValueError("columns is a map of names")
    if not isinstance(fields, dict) or not all(kind in FIELD_TYPES for kind in map(str, fields.values())):
        raise ValueError(f"fields is a map of names to types: {', '.join(FIELD_TYPES)}")
    if not _is_number(step_s) or not 0 < step_s <= 120:
        raise ValueError(f"step_s is above 0 and at most 120 seconds, not {step_s!r}")
    if not _is_number(patience_s) or not patience_s > 0:
        raise ValueError(f"patience_s is above 0 seconds, not {patience_s!r}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
