"""`@batched`: asyncio, threads, futures; and each fault of batched-fn that it must not have."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.batching import FunctionFailed, Reason, WrongCount, batched
from support.gate import LONG, Gate

if TYPE_CHECKING:
    from collections.abc import Callable


def test_given_calls_of_one_loop_then_each_gets_its_own_output_and_they_share_batches(gate: Gate) -> None:
    predict = batched(max_batch_size=4, max_delay=0.01)(gate)

    async def main() -> list[int]:
        return await asyncio.gather(*(predict(n) for n in range(10)))

    assert asyncio.run(main()) == [n * 10 for n in range(10)]
    assert gate.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert predict.stats().batches == {Reason.FULL: 2, Reason.DELAY: 1}


def test_given_calls_of_loops_and_threads_and_futures_at_once_then_each_gets_its_own_output() -> None:
    predict = batched(max_batch_size=16, max_delay=0.002, capacity=1000)(lambda batch: [n * 10 for n in batch])

    async def ask(numbers: range) -> list[int]:
        return await asyncio.gather(*(predict(n) for n in numbers))

    with ThreadPoolExecutor(8) as pool:
        loops = [pool.submit(asyncio.run, ask(range(n, n + 50))) for n in (0, 50)]
        calls = [pool.submit(predict.call, n, LONG) for n in range(100, 200)]
        jobs = [predict.submit(n) for n in range(200, 250)]
        got = [n for loop in loops for n in loop.result(LONG)] + [one.result(LONG) for one in calls + jobs]
    assert got == [n * 10 for n in range(250)]
    assert predict.stats().mean_batch > 1


@pytest.mark.parametrize("kind", [tuple, iter, lambda xs: (x for x in xs), lambda xs: dict(enumerate(xs)).values()])
def test_given_outputs_in_any_ordered_shape_then_they_are_matched(kind: Callable[[list[int]], Any]) -> None:
    with batched(max_delay=0.0)(kind) as predict:
        assert predict.call(3, LONG) == 3


def test_given_a_function_that_uses_its_output_list_again_then_nobody_sees_the_next_batch() -> None:
    shared: list[int] = []

    @batched(max_batch_size=1, max_delay=0.0)
    def predict(batch: list[int]) -> list[int]:
        shared[:] = batch
        return shared

    async def main() -> list[int]:
        return await asyncio.gather(*(predict(n) for n in range(30)))

    assert asyncio.run(main()) == list(range(30))


def test_given_a_decorated_function_then_its_name_and_docstring_stay() -> None:
    @batched()
    def predict(batch: list[int]) -> list[int]:
        """Think hard."""
        return batch

    assert (predict.__name__, predict.__doc__) == ("predict", "Think hard.")


def test_given_an_async_function_or_numbers_out_of_range_then_decorating_fails() -> None:
    async def predict(batch: list[int]) -> list[int]:
        return batch

    with pytest.raises(TypeError, match="must not be async"):
        batched()(predict)
    with pytest.raises(ValueError, match="max_batch_size"):
        batched(max_batch_size=0)
    with pytest.raises(ValueError, match="capacity"):
        batched(capacity=0)(list)


# batched-fn's faults ----------------------------------------------------------------------------------------------


def test_given_a_busy_function_then_the_window_counts_from_arrival_and_not_from_the_pull(gate: Gate) -> None:
    delay = 0.5
    predict = batched(max_batch_size=8, max_delay=delay)(gate)
    gate.hold()
    blocked = [predict.submit(n) for n in range(8)]
    assert gate.entered.wait(LONG)
    late = predict.submit(99)
    threading.Event().wait(delay)  # time itself is what is waited for
    released = time.monotonic()
    gate.open.set()
    assert late.result(LONG) == 990
    assert time.monotonic() - released < delay, "it has waited for its window already"
    assert gate.batches == [[*range(8)], [99]]
    assert [one.result(LONG) for one in blocked] == [n * 10 for n in range(8)]


def test_given_max_delay_0_and_a_backlog_then_it_is_taken_in_full_batches(gate: Gate) -> None:
    gate.hold()
    predict = batched(max_batch_size=8, max_delay=0.0)(gate)
    jobs = [predict.submit(0)]
    assert gate.entered.wait(LONG)
    jobs += [predict.submit(n) for n in range(1, 20)]
    gate.open.set()
    assert [job.result(LONG) for job in jobs] == [n * 10 for n in range(20)]
    assert [len(batch) for batch in gate.batches] == [1, 8, 8, 3]


@pytest.mark.parametrize(
    "raised", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()]
)
def test_given_one_input_on_which_the_function_raises_then_it_fails_alone_and_the_next_call_works(
    raised: BaseException,
) -> None:
    sizes: list[int] = []

    @batched(max_batch_size=16, max_delay=LONG)
    def predict(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        if 5 in batch:
            raise raised
        return batch

    async def main() -> list[int | BaseException]:
        first = await asyncio.gather(*(predict(n) for n in range(16)), return_exceptions=True)
        second = await asyncio.gather(*(predict(n) for n in range(100, 116)))
        return first + second

    got = asyncio.run(main())
    error = got.pop(5)
    if type(raised) is ValueError:
        assert error is raised
    else:
        assert isinstance(error, FunctionFailed)
        assert error.__cause__ is raised
        assert type(raised).__name__ in str(error)
    assert got == [0, 1, 2, 3, 4, *range(6, 16), *range(100, 116)]
    assert len(sizes) == 1 + 8 + 1, "16, then halves down to 1, then the next batch"
    predict.close()


def test_given_callers_that_went_away_then_the_others_and_later_ones_are_served(gate: Gate) -> None:
    predict = batched(max_batch_size=4, max_delay=0.0)(gate)

    async def main() -> list[int]:
        gate.hold()
        running = asyncio.create_task(predict(1))
        await asyncio.to_thread(gate.entered.wait, LONG)
        waiting = [asyncio.create_task(predict(n)) for n in (2, 3, 4)]
        job = await asyncio.to_thread(predict.submit, 5)
        assert job.cancel()
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(predict.call, 6, 0.01)
        running.cancel()
        waiting[1].cancel()
        await asyncio.wait([running, waiting[1]])
        gate.open.set()
        with pytest.raises(CancelledError):
            job.result(LONG)
        return [await waiting[0], await waiting[2], await predict(7)]

    assert asyncio.run(main()) == [20, 40, 70]
    assert [n for batch in gate.batches for n in batch] == [1, 2, 4, 7], "who is gone is not run"


@pytest.mark.parametrize(
    ("outputs", "said"), [([], "not 0"), ([1, 2], "not 2"), ([1] * 9, "not more than 3"), (iter([1]), "not 1")]
)
def test_given_a_wrong_number_of_outputs_then_every_caller_is_told(outputs: Any, said: str) -> None:
    with batched(max_batch_size=3, max_delay=LONG)(lambda _: outputs) as predict:
        jobs = [predict.submit(n) for n in range(3)]
        for job in jobs:
            error = job.exception(LONG)
            assert isinstance(error, WrongCount)
            assert str(error).endswith(f"inputs: 3, {said}")


@pytest.mark.parametrize("outputs", [None, 5, "abc", b"abc", {1: 2, 3: 4, 5: 6}, {1, 2, 3}])
def test_given_outputs_that_cannot_be_matched_then_every_caller_is_told(outputs: Any) -> None:
    with batched(max_batch_size=3, max_delay=LONG)(lambda _: outputs) as predict:
        for job in [predict.submit(n) for n in range(3)]:
            with pytest.raises(TypeError, match="sequence of outputs"):
                job.result(LONG)
