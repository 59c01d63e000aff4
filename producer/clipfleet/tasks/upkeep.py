"""``clipfleet.retry_dead`` and ``clipfleet.reconcile``: what a beat schedule may ask for."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from clipfleet.cli.letters import letters
from clipfleet.cli.queue import QueueView
from clipfleet.producer import requests
from clipfleet.schemas.errors import ErrorCode, RequestFailed, Unavailable, error_for
from clipfleet.tasks.corpus import runs
from clipfleet.tasks.fleet import bulk_client, failure
from clipfleet.tasks.milvus import opened
from clipfleet.tasks.plan import is_digest
from clipfleet.tasks.settings import settings
from clipfleet.tasks.state import totals

__all__ = ["reconcile", "retry_dead"]

_BUDGET_S: Final = 30.0


def retry_dead(self: Any, *, limit: int = 1_000) -> dict[str, Any]:
    """Send dead letters again, one after the other, for at most 30 s; those that succeed are dropped.

    Returns:
        ``{"ok": nothing is left, "done": n, "failed": {code: n}, "left": n}``, or a failure when nobody is there.
    """
    del self
    if type(limit) is not int or limit < 1:
        return failure(error_for(ErrorCode.BAD_REQUEST, "limit is a number of letters, at least 1"))
    fleet = settings().fleet
    try:
        with QueueView.open(fleet.redis_url, fleet.queue, fleet.prefix) as view:
            return _again(view, limit)
    except Unavailable as error:
        return failure(error)


def _again(view: QueueView, limit: int) -> dict[str, Any]:
    """Each letter once; raises ``Unavailable`` when nobody is there to take it."""
    until = time.monotonic() + _BUDGET_S
    done = 0
    failed: Counter[str] = Counter()
    found = list(letters(view))
    for letter in found[:limit]:
        if time.monotonic() >= until:
            break
        try:
            pipeline, inputs, options = letter.again()
            bulk_client().call(requests.run(pipeline, inputs, options, timeout=_BUDGET_S))
        except Unavailable:
            raise
        except RequestFailed as error:
            # A killer that killed again has a new letter, which replaces this one.
            if error.code is ErrorCode.POISONED:
                view.drop([letter.entry])
            failed[error.code] += 1
        else:
            view.drop([letter.entry])
            done += 1
    return {"ok": done == len(found), "done": done, "failed": dict(failed), "left": len(found) - done}


def reconcile(self: Any, run: str) -> dict[str, Any]:
    """Compare the rows of a collection with what a run of ``index_corpus`` says that it has indexed.

    Milvus is asked directly: ``MILVUS_URI`` must be known here, and pymilvus installed (``clipfleet[worker]``).

    Args:
        self: the task.
        run: as the result of ``index_corpus`` names it, and ``AsyncResult.info`` on the way.

    Returns:
        ``{"ok": whether they agree, "rows": in the collection, "indexed": by the run, "collection", "state"}``. More
        rows than indexed are no fault where the collection holds other corpora as well; fewer are.
    """
    del self
    known = runs().get(run) if is_digest(run) else None
    if known is None:
        return failure(error_for(ErrorCode.BAD_REQUEST, "no such run is known; they are kept for a week"))
    collection = known.plan["collection"]
    indexed = totals(runs().shards(run, known.plan["shards"]))["indexed"]
    try:
        with opened() as store:
            rows = store.count(collection)
    except RequestFailed as error:
        return failure(error)
    return {"ok": rows == indexed, "rows": rows, "indexed": indexed, "collection": collection, "state": known.state}
