"""`@batched`: errors of single items, capacity, context."""

from __future__ import annotations

import asyncio
import threading

import pytest

from clipfleet.batching import Full, FunctionFailed, batched
from support.gate import LONG, Gate
from support.waiting import wait_until


def test_given_an_exception_among_the_outputs_then_that_caller_alone_gets_it() -> None:
    @batched(max_batch_size=3, max_delay=LONG)
    def predict(batch: list[int]) -> list[int | Exception]:
        return [OSError(f"no {n}") if n == 1 else n for n in batch]

    jobs = [predict.submit(n) for n in range(3)]
    assert (jobs[0].result(LONG), jobs[2].result(LONG)) == (0, 2)
    with pytest.raises(OSError, match="no 1"):
        jobs[1].result(LONG)


def test_given_a_full_function_then_calls_of_every_kind_are_refused_at_once_and_later_ones_served(gate: Gate) -> None:
    gate.hold()
    predict = batched(max_batch_size=2, max_delay=0.0, capacity=4)(gate)

    async def main() -> list[int | BaseException]:
        return await asyncio.gather(*(predict(n) for n in (4, 5, 6)), return_exceptions=True)

    jobs = [predict.submit(n) for n in range(4)]
    with pytest.raises(Full) as full:
        predict.submit(4)
    assert full.value.retry_after > 0
    with pytest.raises(Full):
        predict.call(4)
    assert [type(error) for error in asyncio.run(main())] == [Full] * 3
    assert predict.stats().refused == 5
    gate.open.set()
    assert [job.result(LONG) for job in jobs] == [0, 10, 20, 30]
    # A place is free once its whole batch is done, a moment after the last output was seen.
    wait_until(lambda: predict.stats().in_flight == 0)
    assert asyncio.run(main())[:3] == [40, 50, 60]


def test_given_room_for_some_of_the_calls_of_one_turn_then_the_first_are_served(gate: Gate) -> None:
    predict = batched(max_batch_size=8, max_delay=0.01, capacity=3)(gate)

    async def main() -> list[int | BaseException]:
        return await asyncio.gather(*(predict(n) for n in range(5)), return_exceptions=True)

    got = asyncio.run(main())
    assert got[:3] == [0, 10, 20]
    assert [type(error) for error in got[3:]] == [Full, Full]


def test_given_a_context_then_it_is_built_once_in_the_thread_that_runs_the_function() -> None:
    built: list[int] = []

    def load() -> int:
        built.append(threading.get_ident())
        return 7

    @batched(max_batch_size=2, max_delay=0.0, context=load)
    def predict(batch: list[int], model: int) -> list[tuple[int, int]]:
        return [(n * model, threading.get_ident()) for n in batch]

    assert built == [], "not before the first call"
    outputs = [predict.call(n, LONG) for n in range(3)]
    assert [n for n, _ in outputs] == [0, 7, 14]
    assert {ident for _, ident in outputs} == set(built)
    assert len(built) == 1
    assert built[0] != threading.get_ident()


@pytest.mark.parametrize("raised", [OSError("no such file"), SystemExit(1)])
def test_given_a_context_that_fails_then_all_who_wait_are_told_and_the_next_call_tries_again(
    raised: BaseException,
) -> None:
    may_fail = threading.Event()
    attempts: list[int] = []

    def load() -> int:
        attempts.append(1)
        assert may_fail.wait(LONG)
        if len(attempts) == 1:
            raise raised
        return 7

    @batched(max_batch_size=2, max_delay=0.0, context=load)
    def predict(batch: list[int], model: int) -> list[int]:
        return [n * model for n in batch]

    jobs = [predict.submit(n) for n in range(5)]
    may_fail.set()
    for job in jobs:
        error = job.exception(LONG)
        assert error is raised or (isinstance(error, FunctionFailed) and error.__cause__ is raised)
    assert predict.call(2, LONG) == 14
    assert len(attempts) == 2


def test_given_a_function_that_calls_itself_then_it_is_told_instead_of_waiting_for_ever() -> None:
    @batched(max_delay=0.0)
    def predict(batch: list[int]) -> list[int]:
        return [predict.call(n) for n in batch]

    with predict, pytest.raises(RuntimeError, match="wait for itself"):
        predict.call(1, LONG)
