"""Every failure of a run, for who has JSON alone: kept in the fleet's Redis, and given page by page.

``index:<run>:<n>:failures``   list: JSON of each failure of a shard, in the order found

Written in the one transaction that counts them, so that none is there twice or missing after a kill. The first 50,000
of a shard are kept (about 250 bytes each); later ones are in the Celery worker's log alone, and counted as left out.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.tasks.fleet import failure
from clipfleet.tasks.plan import is_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import redis

    from clipfleet.tasks.keys import RunKeys

__all__ = ["MOST_KEPT", "index_failures", "keep", "page"]

MOST_KEPT: Final = 50_000
_MOST_TEXT: Final = 500
_MOST_PAGE: Final = 10_000


def keep(pipe: redis.client.Pipeline, key: str, failures: Iterable[Mapping[str, str]], ttl_s: int) -> None:
    """Add a shard's failures to its list, within somebody's transaction."""
    if rows := [json.dumps({name: _cut(name, text) for name, text in each.items()}) for each in failures]:
        pipe.rpush(key, *rows)
        # The first ones stay, so that a place in the list is the same for ever.
        pipe.ltrim(key, 0, MOST_KEPT - 1)
        pipe.expire(key, ttl_s)


def page(
    client: redis.Redis, keys: RunKeys, run: str, after: list[int], limit: int
) -> tuple[list[dict[str, str]], list[int], int]:
    """(failures, how far each shard has been read with them, how many all lists hold).

    Args:
        client: the fleet's Redis.
        keys: its keys.
        run: which run.
        after: how far each of its shards was read before.
        limit: how many failures at most.
    """
    found: list[dict[str, str]] = []
    reached = list(after)
    pipe = client.pipeline(transaction=False)
    for number in range(len(after)):
        pipe.llen(keys.failures(run, number))
    held = [int(count) for count in pipe.execute()]
    for number, count in enumerate(held):
        wanted = min(limit - len(found), count - after[number])
        if wanted > 0:
            raws: Any = client.lrange(keys.failures(run, number), after[number], after[number] + wanted - 1)
            found += [json.loads(raw) for raw in raws]
            reached[number] += len(raws)
    return found, reached, sum(held)


def index_failures(self: Any, run: str, *, after: list[int] | None = None, limit: int = 1_000) -> dict[str, Any]:
    """The failures of a run of ``index_corpus``, also while it goes on.

    Args:
        self: the task.
        run: as the result of ``index_corpus`` names it, and ``AsyncResult.info`` on the way.
        after: what the page before gave as ``after``; None = from the first one.
        limit: how many at most, up to 10,000.

    Returns:
        ``{"ok": true, "failures": [{"id", "label", "code", "message"}], "after", "more": whether there are more now,
        "failed": {code: n}, "left_out": how many were too many to be kept}``. While a run goes on, the same ``after``
        gives later what has come since.
    """
    from clipfleet.tasks.corpus import runs  # noqa: PLC0415 - which imports what writes them

    del self
    known = runs().get(run) if is_digest(run) else None
    if known is None:
        return failure(error_for(ErrorCode.BAD_REQUEST, "no such run is known; they are kept for a week"))
    shards = int(known.plan["shards"])
    if after is None:
        after = [0] * shards
    if not _is_place(after, shards):
        return failure(error_for(ErrorCode.BAD_REQUEST, "after is what the page before gave as such"))
    if type(limit) is not int or not 1 <= limit <= _MOST_PAGE:
        return failure(error_for(ErrorCode.BAD_REQUEST, f"limit is 1 to {_MOST_PAGE}"))
    found, reached, held = runs().failures(run, after, limit)
    failed: Counter[str] = Counter()
    for shard in runs().shards(run, shards):
        failed.update(shard.failed)
    return {
        "ok": True,
        "failures": found,
        "after": reached,
        "more": sum(reached) < held,
        "failed": dict(failed),
        "left_out": max(0, failed.total() - held),
    }


def _is_place(after: object, shards: int) -> bool:
    """Whether a caller's ``after`` can be one."""
    return isinstance(after, list) and len(after) == shards and all(type(each) is int and each >= 0 for each in after)


def _cut(name: str, text: str) -> str:
    # An id that was cut would be another picture's.
    return text if name == "id" or len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
