"""What the results of the tasks that asked for a run say: its progress, and its end."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.exceptions import TaskRevokedError

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.tasks.milvus import switched
from clipfleet.tasks.state import FINISHED, REVOKED, RUNNING, totals

if TYPE_CHECKING:
    from clipfleet.tasks.runs import Runs
    from clipfleet.tasks.state import Run, Shard

__all__ = ["PROGRESS", "show"]

PROGRESS: Final = "PROGRESS"


def show(app: Any, runs: Runs, run: str) -> None:
    """Progress, or the end, in the results of all tasks that asked for the run.

    Whoever comes first after the last shard's end ends the run, so any call does when another one was killed.

    Raises:
        RequestFailed: ``store_failed``: all is indexed, but the alias cannot be switched now.
    """
    known = runs.get(run)
    if known is None:
        return
    shards = runs.shards(run, known.plan["shards"])
    info: dict[str, Any] = {"run": run, "collection": known.plan["collection"], **totals(shards)}
    info["seconds"] = round(((known.ended_ms or runs.now_ms()) - known.began_ms) / 1000, 1)
    if known.state == RUNNING and not all(shard.ended for shard in shards):
        info |= runs.pace(run).info(runs.now_ms(), info["indexed"] + sum(info["failed"].values()))
        _store(app, known, info, PROGRESS)
        # Who ended the run meanwhile has said so first, and this would hide it.
        known = runs.get(run)
    elif known.state == RUNNING:
        known = _close(runs, run, info, shards)
    if known is not None and known.state == REVOKED:
        _store(app, known, TaskRevokedError("the run was stopped"), states.REVOKED)
    elif known is not None and known.state == FINISHED:
        _conclude(app, known, info, shards)


def _close(runs: Runs, run: str, info: dict[str, Any], shards: list[Shard]) -> Run | None:
    """End a run whose shards have ended, its alias switched by one task alone.

    Else the slower one of two would switch it once more, when the next run may have switched it already.
    """
    owner = uuid.uuid4().hex
    known, wait_ms = runs.close(run, owner)
    if wait_ms:
        raise error_for(ErrorCode.STORE_FAILED, f"another task is at it, for {wait_ms} ms at most")
    if known is not None and known.state == RUNNING:
        try:
            runs.end(run, FINISHED, switched(known.plan, info, _gave_up(shards)))
        except RequestFailed:
            runs.leave(run, owner)
            raise
        known = runs.get(run)
    return known


def _conclude(app: Any, known: Run, info: dict[str, Any], shards: list[Shard]) -> None:
    failures = [each for shard in shards for each in shard.failures]
    gave_up = _gave_up(shards)
    ok = not info["failed"] and not gave_up and known.switched.get("switched", True)
    if info["indexed"]:
        result = {"ok": ok, **info, **known.switched, "failures": failures, "gave_up": gave_up}
        _store(app, known, result, states.SUCCESS)
    else:
        # Nothing indexed is never a success, an empty folder included.
        _store(app, known, RuntimeError(_nothing(info, failures, gave_up)), states.FAILURE)


def _gave_up(shards: list[Shard]) -> list[str]:
    return sorted({shard.ended for shard in shards if shard.ended != "done"})


def _store(app: Any, known: Run, result: object, state: str) -> None:
    for task in known.tasks:
        app.backend.store_result(task, result, state)


def _nothing(info: dict[str, Any], failures: list[dict[str, str]], gave_up: list[str]) -> str:
    first = f"; the first: {failures[0]['label']}: {failures[0]['code']}: {failures[0]['message']}" if failures else ""
    why = f"; {'; '.join(gave_up)}" if gave_up else ""
    return f"0 pictures indexed, {sum(info['failed'].values())} failed{first}{why}"
