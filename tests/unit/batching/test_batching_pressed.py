"""`@batched` where something goes wrong at an awkward moment: nobody is left waiting, refused in vain, or run late."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.batching import Closed, Full, batched
from support.gate import LONG, Gate
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLERS = 8


@pytest.fixture
def no_thread_can_start() -> Iterator[None]:
    """The system refuses each new thread, since there is no room for its stack."""
    before = threading.stack_size(1 << 46)
    yield
    threading.stack_size(before)


@pytest.mark.parametrize("max_delay", [0.0, 0.01])
def test_given_a_system_without_room_for_a_thread_then_each_caller_is_told_and_a_later_call_is_served(
    gate: Gate, max_delay: float, request: pytest.FixtureRequest
) -> None:
    async def ask() -> int:
        return await predict(3)

    predict = batched(max_delay=max_delay)(gate)
    request.getfixturevalue("no_thread_can_start")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="thread"):
            predict.call(1, LONG)
        with pytest.raises(RuntimeError, match="thread"):
            predict.submit(2).result(LONG)
        with pytest.raises(RuntimeError, match="thread"):
            asyncio.run(asyncio.wait_for(ask(), LONG))
    assert predict.stats().waiting == predict.stats().in_flight == 0
    threading.stack_size(0)
    assert predict.call(4, LONG) == 40
    assert gate.batches == [[4]]
    predict.close(timeout=LONG)


def test_given_a_caller_interrupted_as_it_starts_the_thread_then_there_are_never_two() -> None:
    """Ctrl-C as the function's thread is being started, by the thread that first calls."""
    threads: set[int] = set()

    def begun_once(batch: list[int]) -> list[int]:
        threads.add(threading.get_ident())
        return batch

    predict = batched(max_batch_size=1, max_delay=0.0)(begun_once)
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("batched-"):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            predict.call(1, LONG)
    for number in range(20):
        predict.call(number, LONG)
    assert len(threads) == 1

    def alive() -> set[int | None]:
        return {thread.ident for thread in threading.enumerate() if thread.name == "batched-begun_once"}

    wait_until(lambda: alive() == threads, description="the thread whose start was interrupted to leave")
    predict.close(timeout=LONG)


def test_given_more_threads_than_a_batch_holds_then_their_ages_do_not_grow_with_time() -> None:
    size, rounds = 2, threading.Semaphore(0)
    asked: dict[int, float] = {}
    waited: list[float] = []

    def function(batch: list[int]) -> list[int]:
        now = time.monotonic()
        waited.extend(now - asked[item] for item in batch)
        rounds.release()
        return batch

    def caller(me: int) -> None:
        while not stop.is_set():
            asked[me] = time.monotonic()
            assert predict.call(me, LONG) == me

    stop = threading.Event()
    with batched(max_batch_size=size, max_delay=0.0)(function) as predict, ThreadPoolExecutor(4 * size) as pool:
        began = time.monotonic()
        callers = [pool.submit(caller, me) for me in range(4 * size)]
        for _ in range(2_000):
            assert rounds.acquire(timeout=LONG)
        stop.set()
        for each in callers:
            each.result(LONG)
        took, stats = time.monotonic() - began, predict.stats()
    assert stats.items == len(waited)
    assert stats.max_wait_s <= max(waited) < took
    assert stats.wait_s <= size * sum(waited), "those of a batch count as being as old as its first"


@pytest.mark.parametrize("max_delay", [0.0, 0.001])
def test_given_as_many_callers_as_places_when_batches_raise_then_none_is_refused(max_delay: float) -> None:
    """Whoever was told of an output or error has its place again, though others of the batch be still in hand."""

    def function(batch: list[int]) -> list[int]:
        if any(item % 7 == 0 for item in batch):
            raise ValueError("seven")
        return [-item for item in batch]

    def caller(first: int) -> int:
        wrong = 0
        for item in range(first, first + 300):
            try:
                assert predict.call(item, LONG) == -item
            except ValueError:
                wrong += 1
        return wrong

    kind = batched(max_batch_size=CALLERS, max_delay=max_delay, capacity=CALLERS)
    with kind(function) as predict, ThreadPoolExecutor(CALLERS) as pool:
        wrong = sum(pool.map(caller, range(0, 700 * CALLERS, 700)))
        assert wrong == CALLERS * 43
        stats = predict.stats()
        assert (stats.refused, stats.in_flight, stats.waiting) == (0, 0, 0)


def test_given_capacity_1_when_an_error_was_told_then_the_next_call_finds_the_place_free() -> None:
    def function(batch: list[int]) -> list[int]:
        raise ValueError(batch[0])

    with batched(max_batch_size=1, max_delay=0.0, capacity=1)(function) as predict:
        for item in range(300):
            with pytest.raises(ValueError, match=str(item)):
                predict.call(item, LONG)
            with pytest.raises(ValueError, match=str(item)):
                predict.submit(item).result(LONG)

        async def main() -> None:
            for item in range(300):
                with pytest.raises(ValueError, match=str(item)):
                    await predict(item)

        asyncio.run(main())
        assert predict.stats().refused == 0


def test_given_callers_that_gave_up_in_a_batch_then_their_places_are_free_while_it_runs(gate: Gate) -> None:
    with batched(max_batch_size=4, max_delay=0.0, capacity=3)(gate) as predict, ThreadPoolExecutor(3) as pool:
        gate.hold()
        first = pool.submit(predict.call, 0, LONG)
        assert gate.entered.wait(LONG)
        gone = pool.submit(predict.call, 1, 0.0)
        assert isinstance(gone.exception(LONG), TimeoutError)
        stays = pool.submit(predict.call, 2, LONG)
        wait_until(lambda: predict.stats().waiting == 2, description="the second to wait beside who gave up")
        gate.open.set()
        assert (first.result(LONG), stays.result(LONG)) == (0, 20)
        assert gate.batches == [[0], [2]]
        assert predict.stats().in_flight == 0


def test_given_threads_that_wait_for_their_turn_when_a_loop_asks_for_more_than_is_left_then_it_is_the_loop_that_is_told(
    gate: Gate,
) -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(*(predict(number) for number in range(10, 14)), return_exceptions=True)

    with batched(max_batch_size=8, max_delay=0.0, capacity=4)(gate) as predict, ThreadPoolExecutor(5) as pool:
        gate.hold()
        first = predict.submit(0)
        assert gate.entered.wait(LONG)
        threads = [pool.submit(predict.call, number, LONG) for number in (1, 2)]
        wait_until(lambda: len(predict._runner._gathered) == 2, description="both to have asked")
        loop = pool.submit(asyncio.run, main())
        wait_until(lambda: predict.stats().refused == 3, description="the loop to be refused")
        gate.open.set()
        assert [each.result(LONG) for each in [first, *threads]] == [0, 10, 20]
        outcomes = loop.result(LONG)
    assert outcomes[0] == 100
    assert all(isinstance(outcome, Full) for outcome in outcomes[1:])


def test_given_a_closed_function_then_refusing_a_call_starts_no_thread(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> int:
        return await predict(3)

    predict = batched(max_delay=0.0)(gate)
    predict.close()
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    with pytest.raises(Closed):
        predict.call(1)
    with pytest.raises(Closed):
        predict.submit(2)
    with pytest.raises(Closed):
        asyncio.run(ask())
    predict.close()
    assert started == []


def test_given_close_when_the_first_caller_has_asked_and_not_yet_begun_the_thread_then_close_waits_for_its_run(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = batched(max_delay=0.0)(gate)
    runner = predict._runner
    rouse, asked, go_on = runner._rouse, threading.Event(), threading.Event()

    def held() -> None:
        if threading.current_thread() is caller:
            asked.set()
            assert go_on.wait(LONG)
        rouse()

    monkeypatch.setattr(runner, "_rouse", held)
    caller = threading.Thread(target=predict.call, args=(1, LONG))
    caller.start()
    assert asked.wait(LONG)
    predict.close(timeout=LONG)
    assert gate.batches == [[1]], "what was asked before has run"
    go_on.set()
    caller.join(LONG)
    assert gate.batches == [[1]]


@pytest.mark.parametrize("place", ["gathered", "thread"])
def test_given_capacity_1_and_a_caller_interrupted_before_it_waits_then_the_next_one_is_served(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Ctrl-C in the main thread, which may come between any two steps."""
    predict = batched(max_delay=0.0, capacity=1)(gate)
    if place == "thread":
        assert predict.call(0, LONG) == 0
        wait_until(lambda: predict._runner._resting, description="the thread to rest")
    with monkeypatch.context() as patch:
        patch.setattr(predict._runner, "_rouse", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            predict.call(1, LONG)
    outputs: list[int] = []

    def served() -> bool:
        try:
            outputs.append(predict.call(2, LONG))
        except Full:  # the interrupted call has the place until the thread has seen that its caller is gone
            return False
        return True

    wait_until(served, description="a call to be served")
    assert outputs == [20]
    assert [1] not in gate.batches, "nobody waits for it"
    predict.close(timeout=LONG)


def test_given_a_function_that_awaits_itself_then_it_is_told_instead_of_waiting_for_ever() -> None:
    def function(batch: list[int]) -> list[int]:
        async def again() -> int:
            return await predict(1)

        asyncio.run(asyncio.wait_for(again(), LONG))
        return batch

    with batched(max_delay=0.0)(function) as predict, pytest.raises(RuntimeError, match="wait for itself"):
        predict.call(1, LONG)


def test_given_a_callback_that_ends_its_thread_then_the_others_of_the_batch_have_their_outputs(gate: Gate) -> None:
    with batched(max_batch_size=4, max_delay=0.0)(gate) as predict:
        gate.hold()
        first = predict.submit(0)
        assert gate.entered.wait(LONG)
        jobs = [predict.submit(number) for number in (1, 2, 3)]
        jobs[0].add_done_callback(lambda _: sys.exit(3))
        gate.open.set()
        assert [job.result(LONG) for job in [first, *jobs]] == [0, 10, 20, 30]
        assert predict.call(4, LONG) == 40


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_given_a_function_closed_before_a_fork_then_it_is_closed_in_the_child_too(gate: Gate) -> None:
    predict = batched(max_delay=0.0)(gate)
    assert predict.call(1, LONG) == 10
    predict.close()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            predict.call(2, LONG)
        except Closed:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


SCRIPT = """
import threading, sys
from clipfleet.batching import Closed, batched

@batched(max_batch_size=4, max_delay=0.0)
def predict(batch):
    return batch

begun = threading.Semaphore(0)

def call(me):
    try:
        while True:
            assert predict.call(me) == me
            begun.release()
    except Closed:
        pass
    try:
        predict.call(me)
    except Closed:
        pass

for me in range(8):
    threading.Thread(target=call, args=(me,), daemon=True).start()
for _ in range(100):
    begun.acquire()
"""


def test_given_threads_that_call_when_the_interpreter_ends_then_it_neither_hangs_nor_complains() -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
