"""`f.call` from many threads: gathered without a lock, and none is lost, run twice or let in above capacity."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clipfleet.batching import Batched, Closed, Full, Reason, batched
from support.gate import LONG, Gate
from support.waiting import wait_until

CALLERS, CALLS = 8, 100


@pytest.mark.usefixtures("often_switched")
@pytest.mark.parametrize("max_delay", [0.0, 0.001])
@pytest.mark.parametrize(("size", "capacity"), [(4, 3), (4, 64), (16, 8)])
def test_given_many_threads_then_each_call_ends_once_and_never_too_many_are_in_hand(
    max_delay: float, size: int, capacity: int
) -> None:
    ran: list[int] = []

    def function(batch: list[int]) -> list[int]:
        stats = predict.stats()
        assert stats.in_flight + stats.waiting <= capacity
        ran.extend(batch)
        return [-item for item in batch]

    predict = batched(max_batch_size=size, max_delay=max_delay, capacity=capacity)(function)

    def caller(first: int) -> int:
        given = 0
        for item in range(first, CALLERS * CALLS, CALLERS):
            try:
                assert predict.call(item, LONG) == -item
                given += 1
            except Full:
                assert capacity < CALLERS, "each has one call in hand, and its place back before its output"
        return given

    with predict, ThreadPoolExecutor(CALLERS) as pool:
        answered = sum(pool.map(caller, range(CALLERS)))
    assert answered == len(ran) == len(set(ran))
    assert answered + predict.stats().refused == CALLERS * CALLS


@pytest.mark.usefixtures("often_switched")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("drain", [True, False])
def test_given_close_amid_calls_of_threads_then_each_ends_with_its_output_or_is_told(seed: int, drain: bool) -> None:
    luck, begun = random.Random(seed), threading.Semaphore(0)
    predict: Batched[int, int] = batched(max_batch_size=4, max_delay=luck.choice([0.0, 0.001]))(
        lambda batch: [-item for item in batch]
    )

    def caller(_: int) -> bool:
        try:
            for item in range(10_000):
                begun.release()
                assert predict.call(item, LONG) == -item
        except Closed:
            return True
        return False

    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(caller, each) for each in range(CALLERS)]
        for _ in range(luck.randrange(1, 200)):
            assert begun.acquire(timeout=LONG)
        predict.close(drain=drain, timeout=LONG)
        assert all(each.result(LONG) for each in callers)


def test_given_calls_of_threads_while_the_function_runs_then_they_count_as_waiting_and_share_the_next_batch(
    gate: Gate,
) -> None:
    with batched(max_batch_size=8, max_delay=0.0, capacity=5)(gate) as predict, ThreadPoolExecutor(4) as pool:
        gate.hold()
        first = predict.submit(0)
        assert gate.entered.wait(LONG)
        others = [pool.submit(predict.call, number, LONG) for number in range(1, 5)]
        wait_until(lambda: predict.stats().waiting == 4, description="the calls to have been made")
        for refused in (predict.call, predict.submit):
            with pytest.raises(Full):
                refused(9)
        gate.open.set()
        assert [each.result(LONG) for each in [first, *others]] == [0, 10, 20, 30, 40]
        assert [len(batch) for batch in gate.batches] == [1, 4]


def test_given_a_call_that_is_run_as_it_was_gathered_then_what_it_waited_is_told_from_its_asking(gate: Gate) -> None:
    with batched(max_batch_size=4, max_delay=0.0)(gate) as predict, ThreadPoolExecutor(2) as pool:
        gate.hold()
        calls = [pool.submit(predict.call, 0, LONG)]
        assert gate.entered.wait(LONG)
        calls.append(pool.submit(predict.call, 1, LONG))
        wait_until(lambda: len(predict._runner._gathered) == 1, description="the call to have been made")
        asked = time.monotonic()
        wait_until(lambda: time.monotonic() - asked > 0.02, description="it to have waited")
        waited = time.monotonic() - asked
        gate.open.set()
        assert [each.result(LONG) for each in calls] == [0, 10]
        stats = predict.stats()
        assert waited <= stats.max_wait_s <= stats.wait_s


def test_given_a_thread_that_sleeps_for_max_delay_then_the_call_that_fills_the_batch_wakes_it(gate: Gate) -> None:
    with batched(max_batch_size=4, max_delay=LONG * 10)(gate) as predict, ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda number: predict.call(number, LONG), range(4))) == [0, 10, 20, 30]
        assert predict.stats().batches == {Reason.FULL: 1}


def test_given_calls_on_their_way_to_the_queue_while_the_thread_goes_to_rest_then_it_is_woken_for_them(
    gate: Gate,
) -> None:
    with batched(max_batch_size=4, max_delay=0.0)(gate) as predict, ThreadPoolExecutor(2) as pool:
        gate.hold()
        first = pool.submit(predict.call, 0, LONG)
        assert gate.entered.wait(LONG)
        runner = predict._runner
        call = pool.submit(predict.call, 1, LONG)
        wait_until(lambda: bool(runner._gathered), description="the call to have been made")
        pull = runner._pull_gathered

        def slow(most: int) -> list[Any]:
            calls = pull(most)
            gate.open.set()
            wait_until(lambda: runner._resting, description="the thread to find nothing")
            return calls

        runner._pull_gathered = slow  # type: ignore[method-assign]
        assert predict.stats().waiting <= 1
        assert [first.result(LONG), call.result(LONG)] == [0, 10]
