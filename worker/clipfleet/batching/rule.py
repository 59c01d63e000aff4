"""The batch rule: when does a stage launch, and with what. Pure: no thread, no clock, no lock.

One owner calls it and passes the time in (seconds of any one monotonic clock). A stage whose device is free launches

1. when `max_batch_size` items are there (`full`);
2. when its oldest item is `max_delay` old, counted from its enqueue, and no sibling is worth waiting for (`delay`);
3. when it is due, waited for siblings, and none came for a whole horizon (`stalled`);
4. with `max_delay` 0, as soon as anything is there, with all that is there (`idle`).

A *sibling* is an item that was announced (read for this stage, being decoded) before the first item of the queue
had left decode. Without the wait for siblings a backlog, all of whose items are overdue, would run one by one as
each leaves decode. Later readings do not count, so a steady trickle cannot stretch the wait for ever, and only the
arrival of a sibling renews it, so one that hangs costs at most one horizon. The horizon is one full run of the
model or `max_delay`, whichever is longer: a sibling that comes later than that is better off in the next batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from clipfleet.batching.cost import RunCost
from clipfleet.batching.line import Lane, Line, Taken
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

    Raises:
        ValueError: a field is out of its range.
    """

    max_batch_size: int
    max_delay_s: float
    bulk_share: int = 8

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, not {self.max_batch_size}")
        if not 0 <= self.max_delay_s < math.inf:
            raise ValueError(f"max_delay must be 0 or more seconds, not {self.max_delay_s}")
        if self.bulk_share < 1:
            raise ValueError(f"bulk_share must be at least 1, not {self.bulk_share}")


class Launch(NamedTuple):
    """Launch now."""

    reason: Reason


class Wait(NamedTuple):
    """Nothing to launch before `until` (None: not before something changes)."""

    until: float | None


class BatchQueue(Generic[T]):
    """The items that wait for one stage, and the rule over them. Owned by one thread; every time in seconds."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._cost = RunCost()
        self._horizon = policy.max_delay_s
        self._interactive: Line[T] = Line()
        self._bulk: Line[T] = Line()
        self._count = 0
        self._oldest = math.inf
        self._credit = 0  # of the bulk lane, in 1 / bulk_share of a place
        self._upstream = Upstream()
        self._barrier = 0  # siblings are the tickets below it
        self._progress_at = -math.inf  # when the last sibling left decode

    def __len__(self) -> int:
        return self._count

    @property
    def upstream(self) -> int:
        """How many announced items have neither arrived nor been retracted."""
        return len(self._upstream)

    @property
    def oldest_at(self) -> float:
        """The smallest `enqueued_at` of all that wait; infinity when nothing does."""
        return self._oldest

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
        return self._cost.estimate(n)

    def record_run(self, n: int, seconds: float) -> None:
        """Tell that a run of `n` items took `seconds`."""
        self._cost.observe(n, seconds)
        run = self._cost.estimate(self.policy.max_batch_size)
        if run is not None:
            self._horizon = max(run, self.policy.max_delay_s)

    def announce(self, n: int = 1, *, now: float, lane: Lane = Lane.INTERACTIVE) -> range:
        """Tell that `n` items were read for this stage and are on their way; one ticket for each."""
        return self._upstream.announce(n, now, lane)

    def retract(self, *tickets: int, now: float) -> bool:
        """Announced items will not come. Tickets that are spent already are ignored.

        Returns:
            Whether `next_batch` may now launch earlier than it last said.
        """
        return self._leave(tickets, now) and self._released(now)

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
        if not self._count:
            self._barrier = self._upstream.next_ticket
            self._progress_at = now
        line = self._bulk if lane is Lane.BULK else self._interactive
        line.push(item, enqueued_at, self._upstream.next_ticket)
        return self._grown(1, enqueued_at) or (left and self._released(now))

    def add_all(self, items: Sequence[T], *, enqueued_at: float, now: float, lane: Lane = Lane.INTERACTIVE) -> bool:
        """Queue items of one age and without tickets (`retract` those first, if there are any); see `add`."""
        if not items:
            return False
        if not self._count:
            self._barrier = self._upstream.next_ticket
            self._progress_at = now
        line = self._bulk if lane is Lane.BULK else self._interactive
        line.push_all(items, enqueued_at, self._upstream.next_ticket)
        return self._grown(len(items), enqueued_at)

    def next_batch(self, now: float, *, device_free: bool = True) -> Launch | Wait:
        """What to do at `now`. Changes nothing: `take` gives the batch.

        Returns:
            `Launch(reason)`, or `Wait(until)`: ask again then, or earlier after an `add` or `retract` that returned
            True; `until` is None if nothing waits or the device is busy.
        """
        if not self._count or not device_free:
            return Wait(None)
        if self._count >= self.policy.max_batch_size:
            return Launch(Reason.FULL)
        if not self.policy.max_delay_s:
            return Launch(Reason.IDLE)
        due = self._oldest + self.policy.max_delay_s
        if now < due:
            return Wait(due)
        if not self._expecting():
            return Launch(Reason.DELAY)
        give_up = max(self._progress_at, due) + self._horizon
        return Wait(give_up) if now < give_up else Launch(Reason.STALLED)

    def take(self) -> Taken[T]:
        """Remove and return the next batch, at most `max_batch_size` items, interactive ones first."""
        interactive, bulk = self._places()
        taken = self._interactive.pull(interactive)
        if bulk:
            more = self._bulk.pull(bulk)
            taken = Taken(taken.items + more.items, taken.enqueued_at + more.enqueued_at)
        self._count -= interactive + bulk
        lines = [line for line in (self._interactive, self._bulk) if line.items]
        self._oldest = min((line.minima[0][0] for line in lines), default=math.inf)
        self._barrier = min((line.barriers[0] for line in lines), default=0)
        # Which of the past arrivals were siblings of the new first item is not kept; the last one stands for them.
        self._progress_at = max(self._progress_at, self._upstream.left_at)
        return taken

    def urgency(self, now: float) -> float:
        """How pressing the stage is, in seconds, to choose among stages that share a device.

        The age of its oldest interactive item or `1 / bulk_share` of that of its oldest bulk item: interactive work
        of one stage goes before bulk work of another, and bulk never starves since its age keeps growing.
        """
        urgency = -math.inf
        if self._interactive.items:
            urgency = now - self._interactive.minima[0][0]
        if self._bulk.items:
            urgency = max(urgency, (now - self._bulk.minima[0][0]) / self.policy.bulk_share)
        return urgency

    def _places(self) -> tuple[int, int]:
        """How many interactive and how many bulk items the next batch holds.

        With less than `bulk_share` places in a batch the lane saves its credit up over several batches.
        """
        interactive, bulk = len(self._interactive.items), len(self._bulk.items)
        size = self.policy.max_batch_size
        if interactive + bulk <= size:
            self._credit = 0
            return interactive, bulk
        if not bulk:
            return size, 0
        self._credit += size
        due = min(bulk, self._credit // self.policy.bulk_share)
        interactive = min(interactive, size - due)
        given = size - interactive
        self._credit = 0 if given == bulk else max(0, self._credit - given * self.policy.bulk_share)
        return interactive, given

    def _grown(self, count: int, enqueued_at: float) -> bool:
        """`count` items came; whether the decision may now be an earlier one."""
        self._count += count
        if enqueued_at < self._oldest:
            self._oldest = enqueued_at
            return True
        return self._count >= self.policy.max_batch_size

    def _expecting(self) -> bool:
        """Whether a sibling is upstream, and the next one likely to come within the horizon."""
        gap = self._upstream.gap_s
        if gap is not None and gap > self._horizon:
            return False
        return self._upstream.any_below(self._barrier)

    def _released(self, now: float) -> bool:
        """Whether the queue is due and expects no sibling."""
        return bool(self._count) and now >= self._oldest + self.policy.max_delay_s and not self._expecting()

    def _leave(self, tickets: Iterable[int], now: float) -> bool:
        """Announced items left decode, for this queue or for nowhere; False if all of them had left before."""
        left = self._upstream.leave(tickets, now, 2 * self._horizon)
        if left and min(left) < self._barrier:
            self._progress_at = now
        return bool(left)
