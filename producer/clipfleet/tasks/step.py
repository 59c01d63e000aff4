"""One step of one shard: what is not done yet goes to the fleet for some seconds, and what was answered is kept."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

import redis

from clipfleet.index.sending import Sending
from clipfleet.index.shrink import SHRINK_PX, can_shrink
from clipfleet.index.sources import Failure, Hides, Item, Skip, SourceError
from clipfleet.index.sources.far import read_ahead
from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.tasks.eta import count_in_background
from clipfleet.tasks.plan import identity
from clipfleet.tasks.runs import LEASE_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from clipfleet.index.sources import Event
    from clipfleet.producer import Client, NewRequest, Result
    from clipfleet.tasks.plan import Plan, Unit
    from clipfleet.tasks.runs import Runs
    from clipfleet.tasks.state import Shard

__all__ = ["Keeper", "Step"]

# Failures that say nothing of the picture: nobody is there to take it. It is sent again in a later step.
_NOBODY: Final = frozenset(
    {ErrorCode.UNAVAILABLE, ErrorCode.QUEUE_FULL, ErrorCode.EXPIRED, ErrorCode.STORE_FAILED, ErrorCode.CANCELLED}
)
_IN_FLIGHT: Final = 256
_SAVE_EVERY_S: Final = 1.0
# Within it a picture is answered by a fleet that lives, or its worker has died of it three times.
_ANSWER_S: Final = 30.0
_LONGEST_ANSWER_S: Final = 300.0
_KEPT_FAILURES: Final = 20
_log = logging.getLogger(__name__)


class Keeper:
    """Renews a shard's lease from a thread of its own, as long as this process lives; a context manager.

    Attributes:
        stop: set when the lease was lost or the run has ended: the step shall come to its end.
    """

    def __init__(self, renew: Callable[[], bool], every_s: float = LEASE_MS / 5000) -> None:
        self.stop = threading.Event()
        self._renew = renew
        self._every_s = every_s
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def _keep(self) -> None:
        while not self._leave.wait(self._every_s):
            # What keeps us from Redis is not decided here: a step's next save fails with it.
            with suppress(redis.exceptions.RedisError):
                if not self._renew():
                    self.stop.set()
                    return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()


class Step:
    """One step; ``run`` it once.

    Attributes:
        over: whether the shard has nothing left.
        moved: whether anything was done.
    """

    def __init__(
        self, *, plan: Plan, runs: Runs, run: str, number: int, shard: Shard, root: Path, stop: threading.Event
    ) -> None:
        self.over = False
        self.moved = False
        self._plan = plan
        self._sending = Sending(plan.collection, shrink_px=SHRINK_PX if can_shrink() else 0)
        self._runs = runs
        self._where = (run, number)
        self._shard = shard
        self._root = root
        self._stop = stop
        self._began = time.monotonic()
        self._send_until: float | None = None
        self._answer_s = min(_LONGEST_ANSWER_S, _ANSWER_S * 2.0 ** min(shard.stalls, 8))
        self._saved_at = time.monotonic()
        self._fresh: list[bytes] = []
        self._failures: list[dict[str, str]] = []
        self._unanswered = 0
        self._skipped = self._duplicates = self._empty = 0

    def run(self, client: Client, on_saved: Callable[[], None]) -> None:
        """Read and send until the time is up, the shard is done, or ``stop`` is set.

        Raises:
            Lost: the shard is somebody else's.
        """
        run, number = self._where
        pace = self._runs.pace(run)
        if number == 0 and not pace.is_counted:
            count_in_background(run, lambda: pace.count(self._plan, self._root))
        units = self._plan.units_of(number)
        while self._shard.unit < len(units):
            done = self._runs.done(*self._where)
            self._unanswered = self._skipped = self._duplicates = self._empty = 0
            wanted = self._requests(units[self._shard.unit], done)
            sent = client.map_with_request(wanted, max_in_flight=_IN_FLIGHT, ordered=False)
            # Closed before its end, as when the run was revoked, it withdraws what is under way.
            with closing(cast("Generator[tuple[NewRequest, Result]]", sent)) as answers:
                for request, result in answers:
                    self._answered(request.tag, result.error)
                    self._save_now_and_then(on_saved)
                    if self._stop.is_set():
                        break
            if self._stop.is_set() or self._time_is_up or self._unanswered:
                self._save()
                on_saved()
                return
            self._shard.unit += 1
            self._shard.skipped += self._skipped
            self._shard.duplicates += self._duplicates
            self._shard.incomplete += self._empty
            self._save(next_unit=True)
            on_saved()
        self.over = True

    @property
    def _time_is_up(self) -> bool:
        return self._send_until is not None and time.monotonic() >= self._send_until

    def _requests(self, unit: Unit, done: set[bytes]) -> Iterator[NewRequest]:
        """A request for each picture that is not done."""
        try:
            for event in self._events(unit, done):
                if self._stop.is_set() or self._time_is_up or self._unanswered >= _IN_FLIGHT:
                    return
                if isinstance(event, Skip):
                    self._passed_over(event)
                elif (request := self._request(event, done)) is not None:
                    yield request
        except (OSError, SourceError, RequestFailed) as error:
            # It was there when the run began.
            name = ", ".join(unit.names)
            gone = RequestFailed(ErrorCode.FETCH_FAILED, f"cannot be read any more: {error}", retryable=False)
            self._request(Failure(name, name, gone, whole=True), done)

    def _events(self, unit: Unit, done: set[bytes]) -> Iterator[Event]:
        found = self._plan.events(unit, self._where[1], self._root)
        with closing(read_ahead(found, lambda item: identity(item) not in done)) as events:
            yield from events

    def _request(self, event: Item | Failure, done: set[bytes]) -> NewRequest | None:
        key = identity(event)
        if key in done:
            return None
        self._begin_sending()
        if isinstance(event, Failure):
            self._shard.incomplete += event.whole or event.hides is Hides.BELOW
            self._failed(key, event, event.error)
            return None
        try:
            request = self._sending.request(event)
        except RequestFailed as error:
            self._failed(key, event, error)
            return None
        return replace(request, timeout=self._timeout_s(), tag=(key, event.id, event.label))

    def _begin_sending(self) -> None:
        """The clock of a step starts at its first picture: what was read to get there may take a quarter of it."""
        if self._send_until is None:
            now = time.monotonic()
            self._send_until = now + max(self._plan.step_s, 3 * (now - self._began))

    def _timeout_s(self) -> float:
        left = (self._send_until or 0.0) - time.monotonic()
        return max(left, 0.0) + self._answer_s

    def _passed_over(self, event: Skip) -> None:
        if event.reason == Skip.OTHER:
            self._skipped += event.count
        elif event.reason == Skip.EMPTY:
            self._empty += 1
        else:
            self._duplicates += event.count

    def _answered(self, tag: Any, error: RequestFailed | None) -> None:
        key, id_, label = tag
        if error is None:
            self._shard.indexed += 1
            self._fresh.append(key)
        elif error.code in _NOBODY:
            self._unanswered += 1
        else:
            self._failed(key, Failure(id_, label, error), error)

    def _failed(self, key: bytes, event: Item | Failure, error: RequestFailed) -> None:
        self._fresh.append(key)
        counts = self._shard.failed
        counts[error.code] = counts.get(error.code, 0) + 1
        # A stranger's file name may hold what a terminal obeys.
        _log.warning("run %s: %r: %s: %r", self._where[0], event.label, error.code, error.message)
        about = {"id": event.id, "label": event.label, "code": str(error.code), "message": error.message}
        self._failures.append(about)
        if len(self._shard.failures) < _KEPT_FAILURES:
            self._shard.failures.append(about)

    def _save_now_and_then(self, on_saved: Callable[[], None]) -> None:
        if time.monotonic() - self._saved_at >= _SAVE_EVERY_S or len(self._fresh) >= _IN_FLIGHT:
            self._save()
            on_saved()

    def _save(self, *, next_unit: bool = False) -> None:
        fresh, self._fresh = self._fresh, []
        failures, self._failures = self._failures, []
        if fresh:
            self.moved = True
            self._shard.stalls = 0
            self._shard.moved_ms = self._runs.now_ms()
        self._runs.save(*self._where, self._shard, fresh, failures=failures, next_unit=next_unit)
        self._saved_at = time.monotonic()
