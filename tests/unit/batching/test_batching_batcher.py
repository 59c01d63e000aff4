"""Batchers under real threads and the real clock."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from clipfleet.batching import Batch, Batcher, BatcherGroup, BatchPolicy, Closed, Full, Lane, Outlook, Reason

if TYPE_CHECKING:
    from clipfleet.batching.stage import Monitor

LONG = 30.0  # a delay that no test sits out


def batcher_of(size: int = 4, delay: float = LONG, capacity: int | None = None) -> Batcher[int]:
    return Batcher(BatchPolicy(size, delay), capacity=capacity)


def taken(batcher: Batcher[int]) -> Batch[int]:
    batch = batcher.take(timeout=25)  # longer than its callers wait, as it would look again when it ends
    assert batch is not None
    return batch


def until_asleep(monitor: Monitor, takers: int = 1) -> None:
    deadline = time.monotonic() + 10
    while monitor._asleep < takers:
        assert time.monotonic() < deadline
        os.sched_yield()


def test_given_a_sleeping_taker_when_the_batch_fills_then_it_wakes() -> None:
    batcher = batcher_of()
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(taken, batcher)
        until_asleep(batcher._monitor)
        for item in range(5):
            batcher.put(item)
        batch = taker.result(5)
    assert (batch.items, batch.reason, len(batcher)) == ([0, 1, 2, 3], Reason.FULL, 1)


def test_given_one_item_then_it_is_taken_at_max_delay_and_not_before() -> None:
    batcher = batcher_of(delay=0.05)
    start = time.monotonic()
    batcher.put(1, enqueued_at=start)
    batch = taken(batcher)
    assert batch.reason is Reason.DELAY
    assert 0.05 <= batch.taken_at - start < 0.5
    assert batch.enqueued_at == [start]


def test_given_a_sleeping_taker_when_an_older_item_comes_then_it_wakes_for_it() -> None:
    batcher = batcher_of()
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(taken, batcher)
        until_asleep(batcher._monitor)
        batcher.put(1)
        batcher.put(2, enqueued_at=time.monotonic() - LONG)
        assert taker.result(5).items == [1, 2]


def test_given_siblings_in_decode_when_the_last_one_is_rejected_then_the_taker_wakes() -> None:
    batcher = batcher_of(size=8, delay=LONG)
    first, second, third = batcher.announce(3)
    batcher.put(1, enqueued_at=time.monotonic() - LONG, ticket=first)
    assert batcher.take(timeout=0.01) is None, "two siblings are still awaited"
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(taken, batcher)
        until_asleep(batcher._monitor)
        batcher.put(2, ticket=second)
        batcher.retract(third)
        assert taker.result(5).items == [1, 2]


def test_given_the_last_siblings_at_once_then_the_taker_wakes_and_each_keeps_its_age() -> None:
    batcher = batcher_of(size=8, delay=LONG)
    tickets = batcher.announce(3)
    past = time.monotonic() - LONG
    batcher.put(1, enqueued_at=past, ticket=tickets[0])
    assert batcher.take(timeout=0.01) is None
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(taken, batcher)
        until_asleep(batcher._monitor)
        batcher.put_many([2, 3], enqueued_at=[past + 1, past + 2], tickets=tickets[1:])
        batch = taker.result(5)
    assert (batch.items, batch.enqueued_at) == ([1, 2, 3], [past, past + 1, past + 2])
    assert batcher.stats().upstream == 0


def test_given_nothing_then_take_times_out() -> None:
    assert batcher_of().take(timeout=0.0) is None
    assert batcher_of().take(timeout=0.01) is None


def test_given_a_capacity_then_items_in_flight_count_until_done() -> None:
    batcher = batcher_of(size=2, capacity=3)
    batcher.put_many([1, 2, 3])
    with pytest.raises(Full) as full:
        batcher.put(4)
    assert full.value.retry_after == 1.0, "unknown before the first run"
    batch = taken(batcher)
    with pytest.raises(Full):
        batcher.put(4)
    batch.done(seconds=0.2)
    batch.done(seconds=9.0)
    batcher.put_many([4, 5])
    with pytest.raises(Full) as full:
        batcher.put_many([6, 7])
    assert full.value.retry_after == pytest.approx(0.3), "3 items at 10 a second"
    stats = batcher.stats()
    assert (stats.waiting, stats.in_flight, stats.refused) == (3, 0, 4)


def test_given_a_full_batcher_then_the_ticket_of_the_refused_item_is_spent() -> None:
    batcher = batcher_of(capacity=1)
    batcher.put(0)
    with pytest.raises(Full):
        batcher.put(1, ticket=batcher.announce()[0])
    assert batcher.stats().upstream == 0


def test_given_room_for_some_then_put_fitting_takes_the_first_and_says_why_not_the_rest() -> None:
    batcher = batcher_of(capacity=3)
    assert batcher.put_fitting([1, 2]) == (2, None)
    fitting, error = batcher.put_fitting([3, 4, 5])
    assert fitting == 1
    assert isinstance(error, Full)
    assert batcher.close(drain=False) == [1, 2, 3]
    fitting, error = batcher.put_fitting([6])
    assert fitting == 0
    assert isinstance(error, Closed)


def test_given_sequences_of_different_lengths_then_put_many_adds_nothing() -> None:
    batcher = batcher_of()
    with pytest.raises(ValueError, match="do not match"):
        batcher.put_many([1, 2], enqueued_at=[0.0])
    assert len(batcher) == 0


def test_given_a_closed_batcher_then_the_rest_is_handed_out_at_once_and_takers_end() -> None:
    batcher = batcher_of()
    batcher.put_many([1, 2], lane=Lane.BULK)
    with ThreadPoolExecutor(1) as pool:
        assert batcher.close() == []
        batch = taken(batcher)
        assert (batch.items, batch.reason) == ([1, 2], Reason.DRAIN)
        assert isinstance(pool.submit(batcher.take).exception(10), Closed)
    with pytest.raises(Closed):
        batcher.put(3)
    with pytest.raises(Closed):
        batcher.wait()


def test_given_sleeping_takers_when_closed_without_drain_then_what_waited_is_returned() -> None:
    batcher = batcher_of()
    with ThreadPoolExecutor(2) as pool:
        takers = [pool.submit(batcher.take) for _ in range(2)]
        until_asleep(batcher._monitor, 2)
        batcher.put_many([1, 2, 3])
        assert batcher.close(drain=False) == [1, 2, 3]
        assert all(isinstance(taker.exception(10), Closed) for taker in takers)


def test_given_many_producers_and_takers_then_nothing_is_lost_or_doubled() -> None:
    batcher: Batcher[tuple[int, int]] = Batcher(BatchPolicy(16, 0.001))
    got: list[list[tuple[int, int]]] = []

    def produce(producer: int) -> None:
        for number in range(500):
            batcher.put((producer, number), lane=Lane.BULK if producer % 2 else Lane.INTERACTIVE)

    def consume() -> None:
        while True:
            try:
                batch = batcher.take()
            except Closed:
                return
            assert batch is not None
            got.append(batch.items)
            batch.done()

    with ThreadPoolExecutor(8) as pool:
        takers = [pool.submit(consume) for _ in range(3)]
        for producer in [pool.submit(produce, n) for n in range(4)]:
            producer.result(30)
        batcher.close()
        for taker in takers:
            taker.result(30)
    items = [item for batch in got for item in batch]
    assert sorted(items) == [(producer, number) for producer in range(4) for number in range(500)]
    stats = batcher.stats()
    assert stats.items == 2000
    assert max(stats.sizes) <= 16
    assert sum(stats.batches.values()) == sum(stats.sizes.values()) == len(got)
    assert stats.mean_batch == 2000 / len(got)
    assert stats.in_flight == 0
    assert 0 <= stats.max_wait_s <= stats.wait_s


def test_given_stages_on_one_device_then_the_most_pressing_one_is_taken() -> None:
    group = BatcherGroup()
    image, text = group.add("image", BatchPolicy(2, 0.0)), group.add("text", BatchPolicy(8, 0.0))
    now = time.monotonic()
    image.put_many(["a", "b", "c"], enqueued_at=[now - 3, now - 3, now - 1])
    text.put("x", enqueued_at=now - 2)
    order = []
    for _ in range(3):
        stage_and_batch = group.take(timeout=10)
        assert stage_and_batch is not None
        stage, batch = stage_and_batch
        assert batch.stage == stage
        order.append((stage, batch.items))
    assert order == [("image", ["a", "b"]), ("text", ["x"]), ("image", ["c"])]
    assert group.take(timeout=0.0) is None
    assert (len(group), group.names, group["text"]) == (0, ("image", "text"), text)


def test_given_bulk_work_in_one_stage_then_interactive_work_of_another_goes_first() -> None:
    group = BatcherGroup()
    image, text = group.add("image", BatchPolicy(8, 0.0)), group.add("text", BatchPolicy(8, 0.0))
    image.put("a", enqueued_at=time.monotonic() - 1.0, lane=Lane.BULK)
    text.put("x", enqueued_at=time.monotonic() - 0.5)
    stage_and_batch = group.take(timeout=10)
    assert stage_and_batch is not None
    assert stage_and_batch[0] == "text"


def test_given_a_taker_of_a_group_when_any_stage_or_a_new_one_has_work_then_it_wakes() -> None:
    group = BatcherGroup()
    group.add("image", BatchPolicy(8, LONG))
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(group.take)
        until_asleep(group._monitor)
        group.add("text", BatchPolicy(1, LONG)).put("x")
        stage_and_batch = taker.result(5)
        assert stage_and_batch is not None
        assert (stage_and_batch[0], stage_and_batch[1].items) == ("text", ["x"])
        with pytest.raises(ValueError, match="already"):
            group.add("text", BatchPolicy(1, LONG))
        group["image"].put(1)
        assert group.close(drain=False) == {"image": [1], "text": []}
        assert isinstance(pool.submit(group.take).exception(10), Closed)


def test_given_items_that_do_not_change_the_decision_then_the_taker_sleeps_on() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(1000, LONG))
    woken = 0
    looked = threading.Event()
    decide = batcher._stage.decide

    def counted(now: float) -> object:
        nonlocal woken
        woken += 1
        looked.set()
        return decide(now)

    batcher._stage.decide = counted
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(batcher.take)
        assert looked.wait(10)
        for item in range(1000):
            batcher.put(item)
        batch = taker.result(5)
    assert batch is not None
    assert len(batch) == 1000
    assert woken <= 3, "first look, first item, full"


def test_given_a_capacity_of_0_then_the_batcher_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        batcher_of(capacity=0)


def test_given_a_batch_that_runs_then_the_outlook_counts_it_and_what_goes_before_a_new_item() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(4, 0.0))
    for n in (4, 1, 2, 3) * 3:
        batcher.put_many(range(n))
        learnt_from = batcher.take()
        assert learnt_from is not None
        learnt_from.done(10.0 + n)
    assert batcher.outlook(Lane.INTERACTIVE) == Outlook(0.0, 0, 0, 4)
    batcher.put_many([1, 2, 3, 4])
    batch = batcher.take()
    assert batch is not None
    batcher.put(5)
    batcher.put(6, lane=Lane.BULK)
    batcher.announce(2)
    batcher.announce(3, lane=Lane.BULK)
    live, bulk = batcher.outlook(Lane.INTERACTIVE), batcher.outlook(Lane.BULK)
    assert (live.waiting, live.upstream, bulk.waiting, bulk.upstream) == (1, 2, 2, 5)
    assert 0 < live.running_s <= 14.5
    batch.done(14.0)
    assert batcher.outlook(Lane.INTERACTIVE).running_s == 0.0
