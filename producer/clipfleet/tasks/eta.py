"""How fast a run goes, and how long it will yet take.

``index:<run>:pace``    list: ``ms:done`` of the last minute or so, whoever looked
``index:<run>:total``   string: how many pictures there are; ``-1`` where nobody can tell cheaply

Guesses for people: nothing is decided by them, and what is lost of them is looked for again.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, cast

from clipfleet.index.sources import SourceError, count_all
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

    from clipfleet.tasks.keys import RunKeys
    from clipfleet.tasks.plan import Plan

__all__ = ["Pace", "count_in_background"]

_SAMPLES: Final = 256
_TTL_S: Final = 24 * 3600
UNKNOWN: Final = -1
_log = logging.getLogger(__name__)
_counting: set[str] = set()


class Pace:
    """The pace of one run."""

    def __init__(self, client: redis.Redis, keys: RunKeys, run: str) -> None:
        self._redis = client
        self._pace, self._total = keys.pace(run), keys.total(run)

    def info(self, now_ms: int, done: int) -> dict[str, Any]:
        """``total``, ``per_second`` and ``left_s``, as far as they are known; ``done`` pictures are, by ``now_ms``."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.rpush(self._pace, f"{now_ms}:{done}")
        pipe.ltrim(self._pace, -_SAMPLES, -1)
        pipe.expire(self._pace, _TTL_S)
        pipe.lindex(self._pace, 0)
        pipe.get(self._total)
        *_, first, total = pipe.execute()
        began_ms, before = map(int, cast("bytes", first).split(b":"))
        return estimate(now_ms - began_ms, done - before, done, None if total is None else int(total))

    @property
    def is_counted(self) -> bool:
        """Whether the total is known, or known not to be."""
        return bool(self._redis.exists(self._total))

    def count(self, plan: Plan, root: Path) -> None:
        """Find out how many pictures there are."""
        try:
            total = sum(1 for unit in plan.units for _ in count_all(plan.opened(unit, root)))
        except (OSError, SourceError, RequestFailed):
            # The run itself meets the same, and says so.
            total = UNKNOWN
        self._redis.set(self._total, total, ex=_TTL_S)


def estimate(span_ms: int, moved: int, done: int, total: int | None) -> dict[str, Any]:
    """What can be said after ``moved`` pictures in ``span_ms``, of which ``done`` are behind us in all."""
    said: dict[str, Any] = {}
    if total is not None and total >= 0:
        # What has come since it was counted is there as well.
        said["total"] = max(total, done)
    if span_ms >= 1_000 and moved > 0:
        said["per_second"] = round(1000 * moved / span_ms, 1)
        if "total" in said:
            said["left_s"] = round((said["total"] - done) * span_ms / (1000 * moved), 1)
    return said


def count_in_background(run: str, count: Callable[[], None]) -> None:
    """Count in a thread which nobody waits for; once a run in this process."""
    if run in _counting:
        return
    _counting.add(run)

    def work() -> None:
        try:
            count()
        except Exception:  # noqa: BLE001 - a guess: whatever keeps us from it, a later step tries again
            _log.exception("run %s: its pictures cannot be counted", run)
        finally:
            _counting.discard(run)

    threading.Thread(target=work, name="count", daemon=True).start()
