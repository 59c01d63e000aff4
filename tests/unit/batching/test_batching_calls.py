"""What calls share: one wake-up of a loop, a batch that needs no queue, a place that is free in time."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

from clipfleet.batching import BatchPolicy, Closed, Full, Reason, batched
from clipfleet.batching.stage import RUNS_KEPT, Stage
from support.gate import LONG, Gate
from support.waiting import wait_until

SIZE = 4


@pytest.mark.parametrize("count", [1, SIZE - 1, SIZE])
def test_given_items_passed_through_then_the_books_are_those_of_queueing_and_taking(count: int) -> None:
    through, queued = (Stage[int](BatchPolicy(SIZE, 0.0), capacity=SIZE, name="") for _ in range(2))
    assert through.pass_through(count, 0.5, 2.0)
    queued.queue.add_all(range(count), enqueued_at=0.5, now=2.0)
    reason = queued.decide(2.0)
    assert isinstance(reason, Reason)
    batch = queued.pop(2.0, reason)
    assert through.snapshot() == queued.snapshot()
    assert (through.in_flight, through.room) == (count, SIZE - count)
    through.left(count, 0.25)
    batch.done(0.25)
    assert through.snapshot() == queued.snapshot()
    assert through.snapshot().line == (0.0, 0.25), "learnt as soon as it is asked for"


def test_given_more_runs_than_are_kept_then_what_is_learnt_of_the_last_ones_is_all_the_same() -> None:
    through, queued = (Stage[int](BatchPolicy(SIZE, 0.0), capacity=SIZE, name="") for _ in range(2))
    for run in range(3 * RUNS_KEPT):
        count = 1 + run % SIZE
        assert through.pass_through(count, 0.0, 0.0)
        through.left(count, count * 0.5 + 1.0)
        queued.record_run(count, count * 0.5 + 1.0)
    assert through.snapshot().line == pytest.approx(queued.snapshot().line, rel=0.01)
    assert through.snapshot().items == 3 * RUNS_KEPT // SIZE * sum(range(1, SIZE + 1))


def test_given_what_the_rule_might_have_otherwise_then_nothing_is_passed_through() -> None:
    def stage(delay: float = 0.0, *, auto: bool = False, bulk_batch_s: float = math.inf) -> Stage[int]:
        policy = BatchPolicy(SIZE, delay, auto=auto, bulk_batch_s=bulk_batch_s)
        return Stage(policy, capacity=SIZE + 1, name="")

    waiting, closed, busy = stage(), stage(), stage()
    waiting.queue.add(0, enqueued_at=0.0, now=0.0)
    closed.closed = True
    assert busy.pass_through(2, 0.0, 0.0)
    cases = [
        (stage(LONG), 1),
        (stage(auto=True), 1),
        (stage(bulk_batch_s=1.0), 1),
        (stage(), SIZE + 1),
        (waiting, 1),
        (closed, 1),
        (busy, SIZE),
    ]
    for one, count in cases:
        before = one.snapshot()
        assert not one.pass_through(count, 0.0, 0.0)
        assert one.snapshot() == before


def test_given_capacity_1_when_each_call_follows_the_output_of_the_last_then_none_is_refused() -> None:
    with batched(max_batch_size=1, max_delay=0.0, capacity=1)(list[int]) as predict:

        async def main() -> list[int]:
            return [await predict(n) for n in range(300)]

        assert [predict.call(n, LONG) for n in range(300)] == list(range(300))
        assert asyncio.run(main()) == list(range(300))
        assert predict.stats().refused == 0


def test_given_several_batches_while_a_loop_is_busy_then_it_is_woken_once_for_all_of_them(gate: Gate) -> None:
    woken: list[Any] = []

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(predict(n)) for n in range(5 * SIZE)]
        await asyncio.to_thread(gate.entered.wait, LONG)
        wake = loop.call_soon_threadsafe

        def counted(callback: Any, *arguments: Any, **named: Any) -> asyncio.Handle:
            woken.append(callback)
            return wake(callback, *arguments, **named)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        gate.open.set()
        wait_until(lambda: predict.stats().items == 5 * SIZE and predict.stats().in_flight == 0)
        return await asyncio.gather(*tasks)

    with batched(max_batch_size=SIZE, max_delay=0.0)(gate) as predict:
        gate.hold()
        assert asyncio.run(main()) == [n * 10 for n in range(5 * SIZE)]
    assert 1 <= len(woken) <= 2, "the first, and one more if that was seen before the loop stood still"


def test_given_a_loop_that_closed_over_its_calls_then_those_of_another_loop_are_served(gate: Gate) -> None:
    async def leave() -> None:
        asyncio.get_running_loop().create_task(predict(1))
        await asyncio.to_thread(gate.entered.wait, LONG)

    async def ask() -> int:
        return await predict(2)

    with batched(max_batch_size=2, max_delay=0.0)(gate) as predict:
        gate.hold()
        asyncio.run(leave())
        gate.open.set()
        assert asyncio.run(ask()) == 20
        assert len(predict._runner.homes) == 1, "a closed loop is not kept beside a living one"


@pytest.mark.parametrize("drain", [True, False])
def test_given_close_amid_calls_that_pass_through_then_each_ends_with_its_output_or_is_told(*, drain: bool) -> None:
    predict = batched(max_batch_size=SIZE, max_delay=0.0)(lambda batch: [-item for item in batch])
    ended: list[type[Exception]] = []
    begun = threading.Semaphore(0)

    def caller() -> None:
        try:
            for item in range(100_000):
                assert predict.call(item, LONG) == -item
                begun.release()
        except (Closed, Full) as error:
            ended.append(type(error))

    threads = [threading.Thread(target=caller) for _ in range(2 * SIZE)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert begun.acquire(timeout=LONG)
    predict.close(drain=drain, timeout=LONG)
    for thread in threads:
        thread.join(LONG)
    assert ended == [Closed] * len(threads)
    assert set(predict.stats().batches) <= {Reason.FULL, Reason.IDLE, Reason.DRAIN}


@pytest.mark.parametrize("delay", [0.0, LONG])
def test_given_calls_on_their_way_to_the_queue_when_it_is_closed_then_they_are_run(delay: float) -> None:
    predict = batched(max_batch_size=SIZE, max_delay=delay)(lambda batch: [-item for item in batch])
    runner = predict._runner
    pull, closing = runner._pull_gathered, threading.Thread(target=predict.close)

    def slow(most: int) -> list[Any]:
        calls = pull(most)
        if calls and not closing.ident:
            closing.start()
            closing.join(0.2)  # it would have closed the queue by now, if it could
        return calls

    runner._pull_gathered = slow  # type: ignore[method-assign]
    assert predict.call(7, LONG) == -7
    closing.join(LONG)
    assert not closing.is_alive()


def test_given_a_loop_that_asked_in_the_turn_in_which_it_closes_the_function_then_its_call_is_run() -> None:
    predict = batched(max_batch_size=SIZE, max_delay=0.0)(lambda batch: [-item for item in batch])

    async def main() -> int:
        asking = asyncio.create_task(predict(7))
        await asyncio.sleep(0)  # it has asked
        predict.close(timeout=LONG)
        return await asking

    assert asyncio.run(main()) == -7
