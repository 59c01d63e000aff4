"""The batch rule for threads: `Batcher` for one stage, `BatcherGroup` for stages that share a device.

Any thread puts; the thread that owns the device takes, and is blocked until a batch is due. Nobody polls: a taker
sleeps exactly until the rule says that time alone can launch a batch, and is woken earlier only when an arrival has
changed that (the first item, the one that fills the batch, the last sibling), not once per item.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clipfleet.batching.errors import Closed, Full
from clipfleet.batching.line import Lane
from clipfleet.batching.stage import Batch, BatcherStats, Monitor, Outlook, Stage, take_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clipfleet.batching.rule import BatchPolicy

T = TypeVar("T")


class Batcher(Generic[T]):
    """One stage's queue, safe to use from any number of threads.

    Args:
        policy: when to launch.
        capacity: most items waiting and in flight together; None: no limit.
        name: of the stage, for `Batch.stage`.
        stage: made by `BatcherGroup.add`, for stages that share a device; it then carries all of the above.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        *,
        capacity: int | None = None,
        name: str = "",
        stage: Stage[T] | None = None,
    ) -> None:
        self._stage: Stage[T] = Stage(policy, capacity=capacity, name=name) if stage is None else stage
        self._monitor = self._stage.monitor
        self._lock = self._monitor.lock

    @property
    def name(self) -> str:
        """Of the stage."""
        return self._stage.name

    @property
    def policy(self) -> BatchPolicy:
        """When to launch."""
        return self._stage.queue.policy

    def __len__(self) -> int:
        return len(self._stage.queue)

    @property
    def room(self) -> int:
        """How many more items may come in, at this moment."""
        return self._stage.room

    @property
    def closed(self) -> bool:
        """Whether it takes no more items."""
        return self._stage.closed

    # Upstream -----------------------------------------------------------------------------------------------------

    def announce(self, n: int = 1, *, lane: Lane = Lane.INTERACTIVE) -> range:
        """Tell that `n` items were read for this stage and are being decoded; one ticket for each, in order."""
        with self._lock:
            return self._stage.queue.announce(n, now=time.monotonic(), lane=lane)

    def retract(self, *tickets: int) -> None:
        """Announced items will not come (rejected, expired, cancelled); tickets already spent are ignored."""
        with self._lock:
            self._stage.retract(tickets, time.monotonic())

    # Producers ----------------------------------------------------------------------------------------------------

    def put(
        self,
        item: T,
        *,
        enqueued_at: float | None = None,
        lane: Lane = Lane.INTERACTIVE,
        ticket: int | None = None,
    ) -> None:
        """Queue one item; never blocks.

        Args:
            item: anything.
            enqueued_at: `time.monotonic()` at which its age starts to count; now, if left out.
            lane: which items go first.
            ticket: from `announce`; it is spent in any case, also when this raises.

        Raises:
            Full: there is no room.
            Closed: the batcher was closed.
        """
        now = time.monotonic()
        with self._lock:
            stage = self._stage
            if stage.closed or stage.room < 1:
                raise stage.refuse(1, now, () if ticket is None else (ticket,))
            at = now if enqueued_at is None else enqueued_at
            if stage.queue.add(item, enqueued_at=at, now=now, lane=lane, ticket=ticket):
                self._monitor.wake()

    def put_many(
        self,
        items: Sequence[T],
        *,
        enqueued_at: float | Sequence[float] | None = None,
        lane: Lane = Lane.INTERACTIVE,
        tickets: Iterable[int] | None = None,
    ) -> None:
        """Queue several items of one lane under one lock: all of them or, when this raises, none.

        Args:
            items: in order.
            enqueued_at: of all or for each of them; now, if left out.
            lane: of all of them.
            tickets: for each of them, if they were announced; spent in any case.

        Raises:
            Full: there is no room for all of them.
            Closed: the batcher was closed.
            ValueError: the sequences differ in length; nothing was queued, and no ticket was spent.
        """
        now = time.monotonic()
        at = now if enqueued_at is None else enqueued_at
        ages = [at] * len(items) if isinstance(at, float | int) else at
        passes = [] if tickets is None else list(tickets)
        if len(items) != len(ages) or (tickets is not None and len(items) != len(passes)):
            raise ValueError(f"{len(items)} items, {len(ages)} times and {len(passes)} tickets do not match")
        with self._lock:
            stage = self._stage
            if stage.closed or stage.room < len(items):
                raise stage.refuse(len(items), now, passes)
            stage.retract(passes, now)  # they have left decode: to the queue, this very moment
            if isinstance(at, float | int):
                sooner = stage.queue.add_all(items, enqueued_at=at, now=now, lane=lane)
            else:
                sooner = False
                for item, age in zip(items, ages, strict=True):
                    sooner |= stage.queue.add(item, enqueued_at=age, now=now, lane=lane)
            if sooner:
                self._monitor.wake()

    def put_fitting(
        self, items: Sequence[T], *, enqueued_at: float | None = None, lane: Lane = Lane.INTERACTIVE
    ) -> tuple[int, Full | Closed | None]:
        """Queue the first of several items as far as there is room.

        Returns:
            How many were queued, and the error for the rest, if any.
        """
        now = time.monotonic()
        with self._lock:
            stage = self._stage
            fitting = 0 if stage.closed else min(len(items), stage.room)
            error = stage.refuse(len(items) - fitting, now) if fitting < len(items) else None
            at = now if enqueued_at is None else enqueued_at
            if stage.queue.add_all(items if error is None else items[:fitting], enqueued_at=at, now=now, lane=lane):
                self._monitor.wake()
            return fitting, error

    # The device ---------------------------------------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> Batch[T] | None:
        """Block until a batch is due and return it; None after `timeout` seconds without one.

        Several threads may take (one per instance). Of a group's batcher use `BatcherGroup.take`, unless this stage
        alone runs on the caller's device.

        Raises:
            Closed: the batcher was closed and nothing is left.
        """
        return take_from(self._monitor, (self._stage,), timeout)

    def wait(self) -> None:
        """Block until at least one item waits, due or not.

        Raises:
            Closed: the batcher was closed and nothing is left.
        """
        with self._lock:
            while not self._stage.queue:
                if self._stage.closed:
                    raise Closed
                self._monitor.sleep(math.inf)

    def estimate(self, n: int) -> float | None:
        """Seconds that a run of `n` items is expected to take; None before the first."""
        with self._lock:
            return self._stage.queue.estimate(n)

    def at_least(self, n: int) -> float | None:
        """Seconds that a run of `n` items takes for certain; None while too little is known."""
        with self._lock:
            return self._stage.queue.cost.at_least(n)

    def outlook(self, lane: Lane) -> Outlook:
        """What stands before an item that comes now."""
        with self._lock:
            return self._stage.outlook(lane, time.monotonic())

    def drain(self) -> list[T]:
        """Remove and return all that waits."""
        with self._lock:
            return self._stage.empty()

    def close(self, *, drain: bool = True) -> list[T]:
        """Take no more items. Later calls may still drop what waits.

        Args:
            drain: what waits is still handed out, at once; else it is dropped.

        Returns:
            What was dropped; empty with `drain`.
        """
        with self._lock:
            self._stage.closed = True
            dropped = [] if drain else self._stage.empty()
            self._monitor.wake()
            return dropped

    def stats(self) -> BatcherStats:
        """A consistent snapshot."""
        with self._lock:
            return self._stage.snapshot()


class BatcherGroup:
    """The stages of one device: one thread takes for all of them.

    Interactive work of one stage goes before bulk work of another, the oldest first; bulk work that is passed over so
    is owed its share of the device's time (`1 / bulk_share`), and goes first when that makes a batch.
    """

    def __init__(self) -> None:
        self._monitor = Monitor()
        self._stages: list[Stage[Any]] = []
        self._batchers: dict[str, Batcher[Any]] = {}

    def __getitem__(self, name: str) -> Batcher[Any]:
        return self._batchers[name]

    def __len__(self) -> int:
        return sum(len(batcher) for batcher in self._batchers.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The stages in the order in which they were added."""
        return tuple(self._batchers)

    def add(self, name: str, policy: BatchPolicy, *, capacity: int | None = None) -> Batcher[Any]:
        """Add a stage; see `Batcher`.

        Raises:
            ValueError: there is one of that name.
        """
        stage: Stage[Any] = Stage(policy, capacity=capacity, name=name, monitor=self._monitor)
        batcher: Batcher[Any] = Batcher(policy, stage=stage)
        with self._monitor.lock:
            if name in self._batchers:
                raise ValueError(f"there is a stage {name!r} already")
            self._batchers[name] = batcher
            self._stages.append(stage)
            self._monitor.wake()
        return batcher

    def take(self, timeout: float | None = None) -> tuple[str, Batch[Any]] | None:
        """Block until a batch of any stage is due; its stage and it, or None after `timeout` seconds without one.

        Raises:
            Closed: all stages were closed and nothing is left.
        """
        batch = take_from(self._monitor, self._stages, timeout)
        return None if batch is None else (batch.stage, batch)

    def close(self, *, drain: bool = True) -> dict[str, list[Any]]:
        """Close every stage; what was dropped, by stage (see `Batcher.close`)."""
        return {name: batcher.close(drain=drain) for name, batcher in self._batchers.items()}
