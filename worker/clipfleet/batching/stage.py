"""Inside the batchers: the lock that the stages of a device share, one stage's queue with its books, and the wait."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from clipfleet.batching.choice import choose
from clipfleet.batching.errors import Closed, Full
from clipfleet.batching.line import Lane, Taken
from clipfleet.batching.rule import BatchPolicy, BatchQueue, Launch, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

RETRY_UNKNOWN_S = 1.0
RETRY_RANGE_S = (0.001, 30.0)
RUNS_KEPT = 100  # earlier ones would weigh less than a hundredth of what is learnt (`cost.FORGET`)


class Monitor:
    """What the stages of one device share: the lock, their sleeping takers, what bulk is owed, and what runs."""

    __slots__ = ("_asleep", "_changed", "busy_until", "lock", "owed_s")

    def __init__(self) -> None:
        self.owed_s = 0.0  # of the device: what bulk batches are owed, see ``choose``
        self.busy_until = -math.inf  # when the batch that was taken last will be done at the earliest
        # Reentrant, as the garbage collector may close an abandoned batcher in the midst of one of its own calls.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._asleep = 0

    def wake(self) -> None:
        """Let every sleeping taker look again; with the lock held."""
        if self._asleep:
            self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Give the lock away until woken or `seconds` (infinity: for ever) have passed; with the lock held."""
        self._asleep += 1
        try:
            self._changed.wait(None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX))
        finally:
            self._asleep -= 1


@dataclass(frozen=True, slots=True)
class BatcherStats:
    """Counts since the start, and the present state.

    Attributes:
        waiting: items in the queue.
        in_flight: items taken and not yet `done`.
        upstream: items announced and not yet here.
        refused: items refused by `Full`.
        batches: batches launched, by reason.
        sizes: batches launched, by number of items.
        items: items launched.
        wait_s: seconds from enqueue to launch, summed over the items launched.
        max_wait_s: the longest of them.
        bulk_most: items that a batch of bulk work may hold by what is known now.
        line: seconds an item and seconds a run, as learnt; None before the first run.
        each_s: seconds that an item of a full batch is expected to take; None before the first run.
    """

    waiting: int
    in_flight: int
    upstream: int
    refused: int
    batches: dict[Reason, int]
    sizes: dict[int, int]
    items: int
    wait_s: float
    max_wait_s: float
    bulk_most: int
    line: tuple[float, float] | None
    each_s: float | None

    @property
    def mean_batch(self) -> float:
        """Items per batch; 0.0 before the first."""
        batches = sum(self.sizes.values())
        return self.items / batches if batches else 0.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What stands before a new item of one lane.

    Attributes:
        running_s: seconds that the batch on the device still takes at the least; 0.0 while that is not known.
        waiting: items in the queue that go before it.
        upstream: those that are announced and do.
        size: items of a full batch.
    """

    running_s: float
    waiting: int
    upstream: int
    size: int


class Batch(Generic[T]):
    """What one run of the device is given.

    Attributes:
        stage: the name of the batcher.
        items: 1 to `max_batch_size` items.
        enqueued_at: for each item, by `time.monotonic()`.
        taken_at: when the batch was launched, likewise.
        reason: why it was launched.
    """

    __slots__ = ("_passes", "_release", "enqueued_at", "items", "reason", "stage", "taken_at")

    def __init__(self, stage: Stage[T], taken: Taken[T], taken_at: float, reason: Reason, *, passes: bool) -> None:
        self.stage = stage.name
        self.items = taken.items
        self.enqueued_at = taken.enqueued_at
        self.taken_at = taken_at
        self.reason = reason
        self._passes = passes
        self._release: Callable[[int, float | None, bool], None] | None = stage.release

    def __len__(self) -> int:
        return len(self.items)

    def done(self, seconds: float | None = None) -> None:
        """The items have left the stage: they no longer count against its capacity. Later calls do nothing.

        Args:
            seconds: how long the device took for all of them, for the cost model; leave it out if not all were run.
        """
        release, self._release = self._release, None
        if release is not None:
            release(len(self.items), seconds, self._passes)


class Stage(Generic[T]):
    """One stage's queue and its books. Who calls it holds the lock of its monitor, `release` aside."""

    def __init__(self, policy: BatchPolicy, *, capacity: int | None, name: str, monitor: Monitor | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.name = name
        self.monitor = Monitor() if monitor is None else monitor
        self._capacity = sys.maxsize if capacity is None else capacity
        self.queue: BatchQueue[T] = BatchQueue(policy)
        self.closed = False
        self.in_flight = 0
        self._refused = 0
        self._reasons: Counter[Reason] = Counter()
        self._sizes: Counter[int] = Counter()
        self._wait_s = 0.0
        self._max_wait_s = 0.0
        self.takes_all = not (policy.max_delay_s or policy.auto or policy.bulk_batch_s < math.inf)
        self._unlearnt: deque[tuple[int, float]] = deque(maxlen=RUNS_KEPT)

    def decide(self, now: float) -> Reason | float:
        """The reason to launch now, or the time before which time alone gives none."""
        if self.closed:
            return Reason.DRAIN if self.queue else math.inf
        decision = self.queue.next_batch(now)
        if isinstance(decision, Launch):
            return decision.reason
        return math.inf if decision.until is None else decision.until

    @property
    def room(self) -> int:
        """How many more items may come in."""
        return self._capacity - self.queue.count - self.in_flight

    @property
    def exhausted(self) -> bool:
        """Whether nothing will ever be there to take."""
        return self.closed and not self.queue

    @property
    def next_run_s(self) -> float:
        """Seconds that a batch of what waits is expected to take; 0.0 before the first run."""
        return self.queue.estimate(min(len(self.queue), self.queue.bulk_most)) or 0.0

    def pop(self, now: float, reason: Reason, *, passes: bool = False) -> Batch[T]:
        """The next batch, entered into the books; `passes`: it goes before a bulk batch that is due."""
        if self.queue.interactive_at == math.inf:
            self.monitor.owed_s = 0.0
        oldest_at = self.queue.oldest_at
        batch = Batch(self, self.queue.take(now), now, reason, passes=passes)
        self._enter(batch, oldest_at)
        return batch

    def pass_through(self, count: int, enqueued_at: float, now: float) -> bool:
        """Enter a batch as queueing its items, all of one age, and taking them at once would, for less.

        Args:
            count: of the items, at least one.
            enqueued_at: their age counts from here.
            now: the time.

        Returns:
            Whether they may run as they are, and are in flight until they have `left`. False where the rule might
            have it otherwise, or there is no room: nothing is changed; queue them then.
        """
        size = self.queue.policy.max_batch_size
        if not self.takes_all or self.closed or self.queue.count or count > size or count > self.room:
            return False
        self.in_flight += count
        self._reasons[Reason.FULL if count == size else Reason.IDLE] += 1
        self._sizes[count] += 1
        waited = now - enqueued_at
        if waited > 0:  # clocks are read in several threads
            self._wait_s += count * waited
            self._max_wait_s = max(self._max_wait_s, waited)
        return True

    def left(self, count: int, seconds: float | None) -> None:
        """`count` items in flight are done, of which `seconds` tells as for `Batch.done`; instead of that.

        Without the lock: what is in flight is changed by takers alone, and this is for the only taker of a stage.
        """
        self.in_flight -= count
        if seconds is not None:
            self._unlearnt.append((count, seconds))

    def _enter(self, batch: Batch[T], oldest_at: float) -> None:
        """Into the books; nothing in the batch is older than `oldest_at`."""
        size, now = len(batch.items), batch.taken_at
        self.in_flight += size
        self.monitor.busy_until = now + (self.queue.cost.at_least(size) or 0.0)
        self._reasons[batch.reason] += 1
        self._sizes[size] += 1
        # Clocks are read in several threads: what was enqueued "after now" has waited for nothing.
        self._wait_s += max(0.0, size * now - sum(batch.enqueued_at))
        if now - oldest_at > self._max_wait_s:  # else none of the batch can have waited longer
            self._max_wait_s = max(self._max_wait_s, now - min(batch.enqueued_at))

    def release(self, count: int, seconds: float | None, passed: bool) -> None:  # noqa: FBT001  (a batch's own)
        """`count` items in flight are done; takes the lock."""
        with self.monitor.lock:
            self.in_flight -= count
            self.monitor.busy_until = -math.inf
            if passed:
                took = self.queue.estimate(count) if seconds is None else seconds
                self.monitor.owed_s += (took or 0.0) / max(1, self.queue.policy.bulk_share - 1)
            if seconds is not None:
                self.record_run(count, seconds)

    def learn(self) -> None:
        """From the runs of what passed through: for whoever asks what a run takes."""
        while self._unlearnt:
            self.queue.record_run(*self._unlearnt.popleft())

    def record_run(self, count: int, seconds: float) -> None:
        """Learn what a run took."""
        self.learn()
        if self.queue.record_run(count, seconds):
            self.monitor.wake()

    def outlook(self, lane: Lane, now: float) -> Outlook:
        """What stands before an item of this lane that comes now."""
        queue = self.queue
        waiting, upstream = queue.ahead_of(lane)
        size = queue.bulk_most if lane is Lane.BULK else queue.policy.max_batch_size
        return Outlook(max(0.0, self.monitor.busy_until - now), waiting, upstream, size)

    def empty(self) -> list[T]:
        """Remove and return all that waits."""
        items: list[T] = []
        while self.queue:
            items += self.queue.take().items
        return items

    def retract(self, tickets: Iterable[int], now: float) -> None:
        """Announced items will not come; one of them may have been the last that was waited for."""
        if self.queue.retract(*tickets, now=now):
            self.monitor.wake()

    def refuse(self, count: int, now: float, tickets: Iterable[int] = ()) -> Closed | Full:
        """The error for `count` items that cannot be taken; their tickets are spent."""
        self.retract(tickets, now)
        if self.closed:
            return Closed()
        self._refused += count
        return Full(self._capacity, self._retry_after())

    def _retry_after(self) -> float:
        """Backlog over the measured rate."""
        self.learn()
        size = self.queue.policy.max_batch_size
        run = self.queue.estimate(size)
        if run is None:
            return RETRY_UNKNOWN_S
        low, high = RETRY_RANGE_S
        return min(max(low, run * (len(self.queue) + self.in_flight) / size), high)

    def snapshot(self) -> BatcherStats:
        """The books of this moment."""
        self.learn()
        return BatcherStats(
            waiting=len(self.queue),
            in_flight=self.in_flight,
            upstream=self.queue.upstream,
            refused=self._refused,
            batches=dict(self._reasons),
            sizes=dict(self._sizes),
            items=sum(size * count for size, count in self._sizes.items()),
            wait_s=self._wait_s,
            max_wait_s=self._max_wait_s,
            bulk_most=self.queue.bulk_most,
            line=self.queue.cost.line(),
            each_s=self.queue.cost.each(self.queue.policy.max_batch_size),
        )


def take_from(monitor: Monitor, stages: Sequence[Stage[T]], timeout: float | None) -> Batch[T] | None:
    """Block until one of the stages has a batch due, and take that of the first of them (`choose`); takes the lock.

    Returns:
        The batch; None after `timeout` seconds without one.

    Raises:
        Closed: all stages are closed and nothing is left.
    """
    give_up = math.inf if timeout is None else time.monotonic() + timeout
    with monitor.lock:
        while True:
            now = time.monotonic()
            choice = choose(stages, now, monitor.owed_s)
            if not isinstance(choice, float):
                stage, reason, passes = choice
                return stage.pop(now, reason, passes=passes)
            if stages and all(stage.exhausted for stage in stages):
                raise Closed
            if now >= give_up:
                return None
            monitor.sleep(min(give_up, choice) - now)
