"""The pure batch rule: examples, and a model that hypothesis drives."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clipfleet.batching import BatchPolicy, BatchQueue, Lane, Launch, Reason, Wait

STEP = 1 / 1024  # a power of two, so that sums of times are exact
DELAY = 50 * STEP


def queue_of(size: int = 4, delay: float = DELAY, share: int = 8, run: float | None = None) -> BatchQueue[int]:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(size, delay, share))
    if run is not None:
        queue.record_run(size, run)
    return queue


@pytest.mark.parametrize(
    ("size", "delay", "share"), [(0, 1.0, 8), (1, -1.0, 8), (1, math.inf, 8), (1, math.nan, 8), (1, 1.0, 0)]
)
def test_given_a_field_out_of_range_then_the_policy_is_refused(size: int, delay: float, share: int) -> None:
    with pytest.raises(ValueError):
        BatchPolicy(size, delay, share)


def test_given_a_lone_item_then_it_launches_exactly_at_max_delay() -> None:
    queue = queue_of()
    assert queue.next_batch(0.0) == Wait(None)
    assert queue.add(1, enqueued_at=0.0, now=0.0)
    assert queue.next_batch(DELAY - STEP) == Wait(DELAY)
    assert queue.next_batch(DELAY) == Launch(Reason.DELAY)
    assert queue.take().items == [1]
    assert queue.next_batch(DELAY) == Wait(None)


def test_given_an_item_that_waited_before_it_arrived_then_its_window_is_not_started_again() -> None:
    queue = queue_of()
    queue.add(1, enqueued_at=10.0, now=10.0)
    assert queue.add(2, enqueued_at=10.0 - 40 * STEP, now=10.0), "an older item must wake the owner"
    assert queue.next_batch(10.0) == Wait(10.0 + 10 * STEP)


def test_given_a_full_batch_then_it_launches_at_once_but_never_on_a_busy_device() -> None:
    queue = queue_of(2)
    queue.announce(8, now=0.0)
    queue.add(1, enqueued_at=0.0, now=0.0)
    assert queue.add(2, enqueued_at=0.0, now=0.0), "the item that fills the batch must wake the owner"
    assert queue.next_batch(0.0, device_free=False) == Wait(None)
    assert queue.next_batch(0.0) == Launch(Reason.FULL)


def test_given_max_delay_0_then_the_whole_backlog_up_to_the_maximum_is_taken_at_once() -> None:
    queue = queue_of(4, 0.0)
    queue.announce(9, now=0.0)
    for item in range(6):
        queue.add(item, enqueued_at=0.0, now=0.0)
    assert queue.next_batch(0.0) == Launch(Reason.FULL)
    assert queue.take().items == [0, 1, 2, 3]
    assert queue.next_batch(0.0) == Launch(Reason.IDLE)
    assert queue.take().items == [4, 5]


def test_given_a_sibling_in_decode_then_an_overdue_item_waits_for_it_and_no_longer() -> None:
    queue = queue_of(4, run=100 * STEP)
    first, second = queue.announce(2, now=0.0)
    queue.add(1, enqueued_at=-DELAY, now=0.0, ticket=first)
    assert queue.next_batch(0.0) == Wait(100 * STEP)
    assert queue.add(2, enqueued_at=-DELAY, now=STEP, ticket=second), "the last sibling must wake the owner"
    assert queue.next_batch(STEP) == Launch(Reason.DELAY)
    assert queue.take().items == [1, 2]


def test_given_a_rejected_sibling_then_nobody_waits_for_it() -> None:
    queue = queue_of(4, run=100 * STEP)
    first, second = queue.announce(2, now=0.0)
    queue.add(1, enqueued_at=-DELAY, now=0.0, ticket=first)
    assert queue.retract(second, now=STEP), "the owner must be woken"
    assert not queue.retract(second, now=STEP), "a spent ticket changes nothing"
    assert queue.upstream == 0
    assert queue.next_batch(STEP) == Launch(Reason.DELAY)


def test_given_an_item_that_was_read_later_then_nobody_waits_for_it() -> None:
    queue = queue_of(4, run=100 * STEP)
    (ticket,) = queue.announce(now=0.0)
    queue.add(1, enqueued_at=-DELAY, now=0.0, ticket=ticket)
    queue.announce(5, now=0.0)
    assert queue.next_batch(0.0) == Launch(Reason.DELAY)


def test_given_a_sibling_that_hangs_then_the_wait_ends_one_horizon_after_the_last_one_that_came() -> None:
    queue = queue_of(8, run=100 * STEP)
    hung, first, second = queue.announce(3, now=0.0)
    queue.add(1, enqueued_at=-DELAY, now=0.0, ticket=first)
    queue.add(2, enqueued_at=-DELAY, now=60 * STEP, ticket=second)
    later = queue.announce(3, now=60 * STEP)
    for n, ticket in enumerate(later):
        now = (70 + 30 * n) * STEP
        queue.add(3 + n, enqueued_at=now, now=now, ticket=ticket)
    assert queue.next_batch(159 * STEP) == Wait(160 * STEP), "what was read later must not renew the wait"
    assert queue.next_batch(160 * STEP) == Launch(Reason.STALLED)
    assert hung not in range(1, 9)


def test_given_a_batch_was_taken_then_the_next_one_counts_its_wait_from_the_last_arrival() -> None:
    queue = queue_of(2, run=100 * STEP)
    queue.add(1, enqueued_at=-DELAY, now=0.0)
    _, gone = queue.announce(2, now=0.0)
    queue.add_all([2, 3], enqueued_at=-DELAY, now=0.0)
    queue.retract(gone, now=60 * STEP)
    assert queue.take().items == [1, 2]
    assert queue.next_batch(120 * STEP) == Wait(160 * STEP)


def test_given_an_upstream_slower_than_the_model_then_nobody_waits_for_it() -> None:
    queue = queue_of(8, run=DELAY)
    for n, ticket in enumerate(queue.announce(4, now=0.0)):
        now = (n + 1) * 2 * DELAY
        queue.add(n, enqueued_at=0.0, now=now, ticket=ticket)
        if n < 3:
            queue.take()
    queue.announce(4, now=8 * DELAY)
    assert queue.expected_gap_s == 2 * DELAY
    queue.take()
    queue.add(9, enqueued_at=0.0, now=8 * DELAY)
    assert queue.next_batch(8 * DELAY) == Launch(Reason.DELAY)


@pytest.mark.parametrize(("size", "share"), [(64, 8), (8, 8), (4, 8), (1, 8), (10, 3), (5, 1)])
def test_given_both_lanes_full_then_bulk_gets_its_share_and_no_more(size: int, share: int) -> None:
    queue = queue_of(size, share=share)
    rounds = 8 * share
    for item in range(size * rounds):
        queue.add(item, enqueued_at=0.0, now=0.0)
        queue.add(-item - 1, enqueued_at=0.0, now=0.0, lane=Lane.BULK)
    bulk = 0
    for done in range(1, rounds + 1):
        bulk += sum(item < 0 for item in queue.take().items)
        assert bulk == done * size // share


def test_given_few_interactive_items_then_bulk_fills_the_rest_and_interactive_goes_first() -> None:
    queue = queue_of(8)
    for item in range(20):
        queue.add(item, enqueued_at=0.0, now=0.0, lane=Lane.BULK)
    queue.add(100, enqueued_at=0.0, now=0.0)
    assert queue.take().items == [100, 0, 1, 2, 3, 4, 5, 6]


# The rule against a model -----------------------------------------------------------------------------------------


class RuleMachine(RuleBasedStateMachine):
    """Everything that can happen to a queue, against plain lists that remember it all."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = queue_of(5, share=3, run=70 * STEP)
        self.lanes: dict[Lane, deque[tuple[int, float, set[int]]]] = {Lane.INTERACTIVE: deque(), Lane.BULK: deque()}
        self.tickets: set[int] = set()
        self.live: set[int] = set()
        self.added = 0

    @property
    def waiting(self) -> list[tuple[int, float, set[int]]]:
        return [*self.lanes[Lane.INTERACTIVE], *self.lanes[Lane.BULK]]

    @rule(steps=st.integers(0, 90))
    def time_passes(self, steps: int) -> None:
        self.now += steps * STEP

    @rule(n=st.integers(1, 6), lane=st.sampled_from(Lane))
    def announce(self, n: int, lane: Lane) -> None:
        tickets = self.queue.announce(n, now=self.now, lane=lane)
        assert not self.tickets & set(tickets)
        self.tickets |= set(tickets)
        self.live |= set(tickets) if lane is Lane.INTERACTIVE else set()

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.tickets)))
        before = self.queue.next_batch(self.now)
        self.tickets.remove(ticket)
        self.check_wake(before, woken=self.queue.retract(ticket, now=self.now))

    @rule(lane=st.sampled_from(Lane), age=st.integers(0, 60), data=st.data())
    def add(self, lane: Lane, age: int, data: st.DataObject) -> None:
        ticket = data.draw(st.none() | st.sampled_from(sorted(self.tickets))) if self.tickets else None
        self.tickets.discard(-1 if ticket is None else ticket)
        before = self.queue.next_batch(self.now)
        self.lanes[lane].append((self.added, self.now - age * STEP, set(self.tickets)))
        woken = self.queue.add(self.added, enqueued_at=self.now - age * STEP, now=self.now, lane=lane, ticket=ticket)
        self.added += 1
        self.check_wake(before, woken=woken)

    @rule(lane=st.sampled_from(Lane), age=st.integers(0, 60), count=st.integers(0, 7))
    def add_all(self, lane: Lane, age: int, count: int) -> None:
        before = self.queue.next_batch(self.now)
        at = self.now - age * STEP
        items = range(self.added, self.added + count)
        self.lanes[lane].extend((item, at, set(self.tickets)) for item in items)
        woken = self.queue.add_all(items, enqueued_at=at, now=self.now, lane=lane)
        self.added += count
        self.check_wake(before, woken=woken)

    def check_wake(self, before: Launch | Wait, *, woken: bool) -> None:
        """An owner that sleeps until `before.until` is woken if the batch may launch earlier."""
        after = self.queue.next_batch(self.now)
        if isinstance(before, Launch) or woken:
            return
        assert isinstance(after, Wait) or (before.until is not None and before.until <= self.now)
        if isinstance(after, Wait):
            assert (after.until or math.inf) >= (before.until or math.inf)

    @rule()
    def take(self) -> None:
        decision = self.queue.next_batch(self.now)
        if isinstance(decision, Wait):
            return
        full = len(self.waiting) >= 5
        assert (decision.reason is Reason.FULL) == full
        oldest = min(at for _, at, _ in self.waiting)
        assert full or self.now >= oldest + DELAY, "launched before it was due"
        bulk_before = len(self.lanes[Lane.BULK])
        taken = self.queue.take()
        assert len(taken.items) == min(5, len(taken.items) + len(self.queue))
        bulk = [item for item in taken.items if any(item == one for one, _, _ in self.lanes[Lane.BULK])]
        interactive = taken.items[: len(taken.items) - len(bulk)]
        assert taken.items == interactive + bulk, "interactive first"
        if full:
            interactive_left = len(self.lanes[Lane.INTERACTIVE]) - len(interactive)
            assert bulk_before == 0 or interactive_left == 0 or 1 <= len(bulk) <= 2
        expected = [self.lanes[Lane.INTERACTIVE].popleft() for _ in interactive]
        expected += [self.lanes[Lane.BULK].popleft() for _ in bulk]
        assert taken.items == [item for item, _, _ in expected], "order kept, nothing lost or doubled"
        assert taken.enqueued_at == [at for _, at, _ in expected]

    @invariant()
    def the_decision_is_right(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.upstream == len(self.tickets)
        assert self.queue.oldest_at == min((at for _, at, _ in self.waiting), default=math.inf)
        decision = self.queue.next_batch(self.now)
        if not self.waiting:
            assert decision == Wait(None)
            return
        if len(self.waiting) >= 5:
            assert decision == Launch(Reason.FULL), "never waits while a full batch exists"
            return
        due = self.queue.oldest_at + DELAY
        if self.now < due:
            assert decision == Wait(due), "the deadline counts from the oldest item"
            return
        siblings = min(self.waiting)[2] & self.tickets
        if any(at + DELAY <= self.now for _, at, _ in self.lanes[Lane.INTERACTIVE]):
            siblings &= self.live
        if not siblings:
            assert decision == Launch(Reason.DELAY)
        elif isinstance(decision, Wait):
            assert decision.until is not None
            assert self.now < decision.until <= self.now + 70 * STEP, "never longer than one horizon"


TestRuleMachine = RuleMachine.TestCase
TestRuleMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


class LiveMachine(RuleMachine):
    """The same with the lanes told apart, a cost that changes, and no delay at times."""

    def __init__(self, policy: BatchPolicy | None = None) -> None:
        super().__init__()
        self.queue = BatchQueue(policy or BatchPolicy(5, DELAY, 3, bulk_batch_s=40 * STEP))

    @rule(n=st.integers(1, 5), steps=st.integers(1, 60))
    def learn(self, n: int, steps: int) -> None:
        before = self.queue.next_batch(self.now)
        self.check_wake(before, woken=self.queue.record_run(n, steps * STEP), changed=True)

    def check_wake(self, before: Launch | Wait, *, woken: bool, changed: bool = False) -> None:
        """What is learnt may shorten a wait that goes on; only a batch that is to launch must not be slept through."""
        if changed and not isinstance(self.queue.next_batch(self.now), Launch):
            return
        if changed and not self.queue.bulk_most <= len(self.lanes[Lane.BULK]):
            return
        super().check_wake(before, woken=woken)

    @rule()
    def take(self) -> None:
        if isinstance(self.queue.next_batch(self.now), Wait):
            return
        most, live_due = self.queue.bulk_most, self.queue.is_due(self.now)
        taken = self.queue.take(self.now)
        live = self.lanes[Lane.INTERACTIVE]
        interactive = [live.popleft()[0] for _ in range(min(len(live), len(taken.items))) if live[0][0] in taken.items]
        bulk = [self.lanes[Lane.BULK].popleft()[0] for _ in range(len(taken.items) - len(interactive))]
        assert taken.items == interactive + bulk, "interactive first, order kept, nothing lost or doubled"
        assert 1 <= len(taken.items) <= 5
        assert interactive or len(bulk) <= most
        assert interactive or not live_due, "a live item that is due is in the next batch"

    @invariant()
    def the_decision_is_right(self) -> None:
        assert len(self.queue) == len(self.waiting)
        decision = self.queue.next_batch(self.now)
        if not self.waiting:
            assert decision == Wait(None)
        elif len(self.waiting) >= 5 or len(self.lanes[Lane.BULK]) >= self.queue.bulk_most:
            assert decision == Launch(Reason.FULL)
        elif isinstance(decision, Wait):
            assert decision.until is not None
            assert decision.until > self.now
            assert not (self.queue.is_due(self.now) and not self.tickets & self.live), "waits for nobody"


class AutoMachine(LiveMachine):
    """The same without a delay, where waiting is a matter of cost."""

    def __init__(self) -> None:
        super().__init__(BatchPolicy(5, 0.0, 3, bulk_batch_s=40 * STEP, auto=True))


TestLiveMachine = LiveMachine.TestCase
TestAutoMachine = AutoMachine.TestCase
TestLiveMachine.settings = TestAutoMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
