"""The batch rule: when does a stage launch, and with what. Pure: no thread, no clock, no lock.

One owner calls it and passes the time in (seconds of any one monotonic clock). A stage whose device is free launches

1. when `max_batch_size` items are there (`full`);
2. when its oldest item is `max_delay` old, counted from its enqueue, and no sibling is worth waiting for (`delay`);
3. when it is due, waited for siblings, and none came for a whole horizon (`stalled`);
4. with `max_delay` 0, as soon as anything is there, with all that is there (`idle`); with `auto` not before siblings
   for which it pays to wait: all that are there wait for the next one, and a run costs its constant part once less.

A *sibling* is an item that was announced (read for this stage, being decoded) before the first item of the queue
had left decode. Without it a backlog, all overdue, would run one by one as each leaves decode. Later readings do not
count: a trickle cannot stretch the wait for ever; only a sibling that arrives renews it: one that hangs costs one
horizon (one full run or `max_delay`, the longer one: who comes later is better off in the next batch). An interactive
item that is due waits for interactive siblings alone.

With `bulk_batch_s` the lanes are told apart, so that a live query waits for one bulk batch at the most:
- so many bulk items as take so long by the learnt cost, less a part in `bulk_share`, run at a time: a full batch;
- interactive items that are due run in a batch of their own, in which bulk has its share (one place in `bulk_share`),
  and beyond it only what lengthens the run by that part: so both waits together are no more than `bulk_batch_s`;
- those that are not due yet ride along with a bulk batch that is full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from clipfleet.batching.cost import RunCost
from clipfleet.batching.line import Lane, Line, Taken
from clipfleet.batching.share import BulkShare
from clipfleet.batching.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")


class Reason(StrEnum):
    """Why a batch was launched."""

    FULL = "full"
    DELAY = "delay"
    STALLED = "stalled"
    IDLE = "idle"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How a stage batches.

    Attributes:
        max_batch_size: most items of one batch, >= 1.
        max_delay_s: seconds that the oldest item may be old before its batch launches; 0 takes what is there.
        bulk_share: of each `bulk_share` places one is bulk's while it has work.
        auto: with `max_delay_s` 0, whether to wait for siblings where it pays by what was learnt.
        bulk_batch_s: seconds that a batch with bulk items in it may take, > 0; infinity: bulk fills every batch.

    Raises:
        ValueError: a field is out of its range.
    """

    max_batch_size: int
    max_delay_s: float
    bulk_share: int = 8
    bulk_batch_s: float = math.inf
    auto: bool = False

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, not {self.max_batch_size}")
        if not 0 <= self.max_delay_s < math.inf:
            raise ValueError(f"max_delay must be 0 or more seconds, not {self.max_delay_s}")
        if self.bulk_share < 1:
            raise ValueError(f"bulk_share must be at least 1, not {self.bulk_share}")
        if not self.bulk_batch_s > 0:
            raise ValueError(f"bulk_batch_s must be more than 0 seconds, not {self.bulk_batch_s}")


class Launch(NamedTuple):
    """Launch now."""

    reason: Reason


class Wait(NamedTuple):
    """Nothing to launch before `until` (None: not before something changes)."""

    until: float | None


class BatchQueue(Generic[T]):
    """The items that wait for one stage, and the rule over them. Owned by one thread; every time in seconds.

    Attributes:
        cost: what was learnt of its runs.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.cost = RunCost()
        self._horizon = policy.max_delay_s
        self._interactive: Line[T] = Line()
        self._bulk: Line[T] = Line()
        self.count = 0  # of those that wait: ``len`` without a call
        self._oldest = math.inf
        self._share = BulkShare(policy.bulk_share)
        self._told_apart = policy.bulk_batch_s < math.inf
        self._part_s = policy.bulk_batch_s / policy.bulk_share
        self._bulk_s = policy.bulk_batch_s - (self._part_s if policy.bulk_share > 1 else 0.0)
        self._bulk_most = 1 if self._told_apart else policy.max_batch_size
        self._upstream = Upstream()
        self._barrier = 0  # siblings are the tickets below it
        self._progress_at = -math.inf  # when the last sibling left decode

    def __len__(self) -> int:
        return self.count

    @property
    def upstream(self) -> int:
        """How many announced items have neither arrived nor been retracted."""
        return len(self._upstream)

    def ahead_of(self, lane: Lane) -> tuple[int, int]:
        """How many items that wait, and how many that are announced, go before one of this lane that comes now."""
        if lane is Lane.BULK:
            return self.count, len(self._upstream)
        return len(self._interactive.items), self._upstream.interactive

    @property
    def oldest_at(self) -> float:
        """The smallest `enqueued_at` of all that wait; infinity when nothing does."""
        return self._oldest

    @property
    def interactive_at(self) -> float:
        """The smallest `enqueued_at` of the interactive items that wait; infinity when there are none."""
        return self._interactive.oldest_at

    @property
    def bulk_most(self) -> int:
        """How many items a batch of bulk items alone holds at most, by what is known now."""
        return self._bulk_most

    def is_due(self, now: float) -> bool:
        """Whether an interactive item that waits is `max_delay` old."""
        return self._interactive.oldest_at + self.policy.max_delay_s <= now

    @property
    def expected_gap_s(self) -> float | None:
        """Seconds between two arrivals from a busy upstream (moving average); None before the first."""
        return self._upstream.gap_s

    @property
    def horizon_s(self) -> float:
        """The longest that a due batch waits for its next sibling: one full run, or `max_delay` if longer."""
        return self._horizon

    def estimate(self, n: int) -> float | None:
        """Seconds that a run of `n` items is expected to take; None before the first."""
        return self.cost.estimate(n)

    def record_run(self, n: int, seconds: float) -> bool:
        """Tell that a run of `n` items took `seconds`.

        Returns:
            Whether `next_batch` may now launch earlier than it last said.
        """
        self.cost.observe(n, seconds)
        run = self.cost.estimate(self.policy.max_batch_size)
        if run is not None:
            self._horizon = max(run, self.policy.max_delay_s)
        if not self._told_apart:
            return False
        before, self._bulk_most = self._bulk_most, self.cost.most(self._bulk_s, self.policy.max_batch_size)
        return self._bulk_most < before and self._full

    def announce(self, n: int = 1, *, now: float, lane: Lane = Lane.INTERACTIVE) -> range:
        """Tell that `n` items were read for this stage and are on their way; one ticket for each."""
        return self._upstream.announce(n, now, lane)

    def retract(self, *tickets: int, now: float) -> bool:
        """Announced items will not come. Tickets that are spent already are ignored.

        Returns:
            Whether `next_batch` may now launch earlier than it last said.
        """
        return self._sooner(now, left=self._leave(tickets, now))

    def add(
        self,
        item: T,
        *,
        enqueued_at: float,
        now: float,
        lane: Lane = Lane.INTERACTIVE,
        ticket: int | None = None,
    ) -> bool:
        """Queue one item, in order of arrival within its lane.

        Args:
            item: anything.
            enqueued_at: when its age starts to count; it may lie before `now`.
            now: the time.
            lane: which items go first.
            ticket: from `announce`, if it was announced; one that is spent already is ignored.

        Returns:
            Whether `next_batch` may now launch earlier than it last said: a waiting owner need only be woken then.
        """
        left = ticket is not None and self._leave((ticket,), now)
        if not self.count:
            self._barrier = self._upstream.next_ticket
            self._progress_at = now
        line = self._bulk if lane is Lane.BULK else self._interactive
        line.push(item, enqueued_at, self._upstream.next_ticket)
        return self._grown(1, enqueued_at, lane) or self._sooner(now, left=left)

    def add_all(self, items: Sequence[T], *, enqueued_at: float, now: float, lane: Lane = Lane.INTERACTIVE) -> bool:
        """Queue items of one age and without tickets (`retract` those first, if there are any); see `add`."""
        if not items:
            return False
        if not self.count:
            self._barrier = self._upstream.next_ticket
            self._progress_at = now
        line = self._bulk if lane is Lane.BULK else self._interactive
        line.push_all(items, enqueued_at, self._upstream.next_ticket)
        return self._grown(len(items), enqueued_at, lane) or self._sooner(now, left=False)

    def next_batch(self, now: float, *, device_free: bool = True) -> Launch | Wait:
        """What to do at `now`. Changes nothing: `take` gives the batch.

        Returns:
            `Launch(reason)`, or `Wait(until)`: ask again then, or earlier after an `add` or `retract` that returned
            True; `until` is None if nothing waits or the device is busy.
        """
        if not self.count or not device_free:
            return Wait(None)
        if self._full:
            return Launch(Reason.FULL)
        if not self.policy.max_delay_s:
            return self._at_once(now)
        due = self._oldest + self.policy.max_delay_s
        if now < due:
            return Wait(due)
        return self._overdue(now, due) if self._expecting(now) else Launch(Reason.DELAY)

    def _at_once(self, now: float) -> Launch | Wait:
        """What to do where nobody is to wait: launch, unless waiting costs less than it saves."""
        # A free device that runs what is there is never slower than one that waits for what may come. But those that
        # were read together come out of decode one by one, and each would be a run of its own.
        if self.policy.auto and self._pays() and self._expecting(now):
            give_up = self._progress_at + 2 * (self._upstream.gap_s or 0.0)
            if now < give_up:
                return Wait(give_up)
        return Launch(Reason.IDLE)

    def _pays(self) -> bool:
        """Whether one more item saves more than it costs those that are there: its coming, and its part of the run."""
        gap, line = self._upstream.gap_s, self.cost.line()
        return gap is not None and line is not None and self.count * (gap + line[0]) <= line[1]

    def _overdue(self, now: float, due: float) -> Launch | Wait:
        """What to do while the oldest item is due and siblings are expected."""
        give_up = max(self._progress_at, due) + self._horizon
        if now >= give_up:
            return Launch(Reason.STALLED)
        # Bulk items may wait for their siblings, and an interactive one come to its time meanwhile.
        next_due = self._interactive.oldest_at + self.policy.max_delay_s
        return Wait(min(give_up, next_due) if now < next_due else give_up)

    def take(self, now: float = math.inf) -> Taken[T]:
        """Remove and return the next batch, at most `max_batch_size` items, interactive ones first."""
        interactive, bulk = self._places(now)
        taken = self._interactive.pull(interactive)
        if bulk:
            more = self._bulk.pull(bulk)
            taken = Taken(taken.items + more.items, taken.enqueued_at + more.enqueued_at)
        self.count -= interactive + bulk
        if self.count:
            lines = [line for line in (self._interactive, self._bulk) if line.items]
            self._oldest = min(line.oldest_at for line in lines)
            self._barrier = min(line.barriers[0] for line in lines)
        else:
            self._oldest, self._barrier = math.inf, 0
        # Which of the past arrivals were siblings of the new first item is not kept; the last one stands for them.
        self._progress_at = max(self._progress_at, self._upstream.left_at)
        return taken

    def _places(self, now: float) -> tuple[int, int]:
        """How many interactive and how many bulk items the next batch holds."""
        interactive, bulk = len(self._interactive.items), len(self._bulk.items)
        size = self.policy.max_batch_size
        if not interactive:
            size = free = self._bulk_most
        elif bulk and self._told_apart:
            free = self._fill(min(interactive, size), now)
        else:
            free = size - min(interactive, size)
        return self._share.split(interactive, bulk, size, free)

    def _fill(self, interactive: int, now: float) -> int:
        """How many bulk items may run with so many interactive ones, whatever their share is."""
        if self.is_due(now):
            alone = self.cost.estimate(interactive) or 0.0
            most = self.cost.most(alone + self._part_s, self.policy.max_batch_size)
        else:
            most = self._bulk_most
        return max(0, most - interactive)

    @property
    def _full(self) -> bool:
        """Whether more items would not come into the next batch."""
        return self.count >= self.policy.max_batch_size or len(self._bulk.items) >= self._bulk_most

    def _grown(self, count: int, enqueued_at: float, lane: Lane) -> bool:
        """`count` items came; whether the decision may now be an earlier one."""
        self.count += count
        if enqueued_at < self._oldest:
            self._oldest = enqueued_at
            return True
        # Among bulk items that wait for siblings though they be older, the oldest interactive one sets the time.
        sooner = lane is Lane.INTERACTIVE and bool(self._bulk.items) and self._interactive.oldest_at == enqueued_at
        return sooner or self._full

    def _expecting(self, now: float) -> bool:
        """Whether a sibling is upstream, and the next one likely to come within the horizon."""
        upstream = self._upstream
        if upstream.gap_s is not None and upstream.gap_s > self._horizon:
            return False
        if self.is_due(now):
            return upstream.interactive_below(self._barrier)
        return upstream.any_below(self._barrier)

    def _sooner(self, now: float, *, left: bool) -> bool:
        """Whether the decision may be an earlier one since a sibling `left` decode or, with `auto`, an item came."""
        if self.policy.auto:  # what pays depends on how often siblings come, and on how many wait for the next
            return left or isinstance(self.next_batch(now), Launch)
        return left and isinstance(self.next_batch(now), Launch)

    def _leave(self, tickets: Iterable[int], now: float) -> bool:
        """Announced items left decode, for this queue or for nowhere; False if all of them had left before."""
        left = self._upstream.leave(tickets, now, 2 * self._horizon)
        if left and min(left) < self._barrier:
            self._progress_at = now
        return bool(left)
