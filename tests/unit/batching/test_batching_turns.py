"""Full batches of one turn of an event loop are run as they stand: beside threads, cancelled, closed, in order."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from clipfleet.batching import Batched, Closed, Full, Reason, batched
from support.gate import LONG, Gate
from support.waiting import wait_until

SIZE = 4


async def _begin(predict: Batched[int, int], numbers: range) -> list[asyncio.Task[int]]:
    """Calls of one turn of the loop, all of them made."""

    async def ask(number: int) -> int:
        return await predict(number)

    tasks = [asyncio.create_task(ask(number)) for number in numbers]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # what was asked for in that turn has been put at its end
    return tasks


@pytest.mark.usefixtures("often_switched")
@pytest.mark.parametrize("capacity", [SIZE + 1, 4 * SIZE, 64])
def test_given_loops_and_threads_and_futures_at_once_then_each_call_ends_once_and_never_too_many_are_in_hand(
    capacity: int,
) -> None:
    ran: list[int] = []

    def function(batch: list[int]) -> list[int]:
        stats = predict.stats()
        assert stats.in_flight + stats.waiting <= capacity
        ran.extend(batch)
        return [-item for item in batch]

    predict = batched(max_batch_size=SIZE, max_delay=0.0, capacity=capacity)(function)

    async def ask(item: int) -> int:
        try:
            assert await predict(item) == -item
        except Full:
            return 0
        return 1

    async def loop(first: int) -> int:
        return sum([sum(await asyncio.gather(*map(ask, range(n, n + 2 * SIZE)))) for n in range(first, first + 400, 8)])

    def thread(first: int) -> int:
        given = 0
        for item in range(first, first + 200):
            try:
                assert (predict.call(item, LONG) if item % 2 else predict.submit(item).result(LONG)) == -item
                given += 1
            except Full:
                pass
        return given

    with predict, ThreadPoolExecutor(6) as pool:
        loops = [pool.submit(asyncio.run, loop(n * 1000)) for n in range(2)]
        threads = [pool.submit(thread, n * 1000) for n in range(2, 6)]
        answered = sum(each.result(LONG) for each in loops + threads)
    assert answered == len(ran) == len(set(ran))
    assert answered + predict.stats().refused == 2 * 400 + 4 * 200


def test_given_turns_of_more_than_a_batch_then_they_run_in_the_order_in_which_they_came(gate: Gate) -> None:
    async def main() -> list[int]:
        gate.hold()
        tasks = await _begin(predict, range(1))
        await asyncio.to_thread(gate.entered.wait, LONG)
        tasks += await _begin(predict, range(1, 2 * SIZE + 2))
        tasks += await _begin(predict, range(2 * SIZE + 2, 3 * SIZE + 2))
        gate.open.set()
        return await asyncio.gather(*tasks)

    with batched(max_batch_size=SIZE, max_delay=0.0)(gate) as predict:
        assert asyncio.run(main()) == [n * 10 for n in range(3 * SIZE + 2)]
    assert [n for batch in gate.batches for n in batch] == list(range(3 * SIZE + 2))
    assert [len(batch) for batch in gate.batches] == [1, SIZE, SIZE, SIZE, 1]


def test_given_some_of_a_full_turn_cancelled_before_it_runs_then_these_alone_are_skipped(gate: Gate) -> None:
    async def main() -> list[int]:
        gate.hold()
        first = await _begin(predict, range(1))
        await asyncio.to_thread(gate.entered.wait, LONG)
        tasks = await _begin(predict, range(1, 1 + 2 * SIZE))
        gone = [*tasks[:SIZE], tasks[SIZE + 1]]  # a whole batch, and one of the next
        for task in gone:
            task.cancel()
        await asyncio.wait(gone)
        gate.open.set()
        return await asyncio.gather(*first, *(task for task in tasks if task not in gone))

    with batched(max_batch_size=SIZE, max_delay=0.0, capacity=2 * SIZE + 1)(gate) as predict:
        assert asyncio.run(main()) == [0, 50, 70, 80]
        assert gate.batches == [[0], [5, 7, 8]]
        wait_until(lambda: predict.stats().in_flight == 0)
        assert predict.stats().waiting == 0


def test_given_a_full_turn_on_which_the_function_raises_then_the_guilty_input_alone_fails() -> None:
    @batched(max_batch_size=SIZE, max_delay=0.0)
    def predict(batch: list[int]) -> list[int]:
        if 2 in batch:
            batch.clear()  # the list is the function's own
            raise ValueError(2)
        return [-item for item in batch]

    async def main() -> list[int | BaseException]:
        return await asyncio.gather(*(predict(n) for n in range(SIZE)), return_exceptions=True)

    with predict:
        got = asyncio.run(main())
        assert predict.stats().batches == {Reason.FULL: 1}
    assert isinstance(got.pop(2), ValueError)
    assert got == [0, -1, -3]


@pytest.mark.parametrize("drain", [True, False])
def test_given_close_while_full_turns_wait_then_each_call_ends_with_its_output_or_is_told(
    gate: Gate, *, drain: bool
) -> None:
    async def main() -> list[int | BaseException]:
        gate.hold()
        tasks = await _begin(predict, range(1))
        await asyncio.to_thread(gate.entered.wait, LONG)
        tasks += await _begin(predict, range(1, 1 + 2 * SIZE))
        closing = asyncio.create_task(asyncio.to_thread(predict.close, drain=drain, timeout=LONG))
        await asyncio.to_thread(wait_until, lambda: predict._runner.batcher.closed)
        gate.open.set()
        await closing
        return await asyncio.gather(*tasks, return_exceptions=True)

    predict = batched(max_batch_size=SIZE, max_delay=0.0)(gate)
    got = asyncio.run(main())
    assert got[0] == 0
    if drain:
        assert got[1:] == [n * 10 for n in range(1, 1 + 2 * SIZE)]
    else:
        assert [type(error) for error in got[1:]] == [Closed] * 2 * SIZE
