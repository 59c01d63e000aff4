"""`@batched`: asyncio, threads, futures; and each fault of batched-fn that it must not have."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.batching import Batched, Closed, Full, FunctionFailed, Reason, WrongCount, batched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = 30.0  # a delay or timeout that no test sits out


class Gate:
    """A function over batches that records them and can be held inside."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def __call__(self, batch: list[Any]) -> list[Any]:
        self.batches.append(list(batch))
        self.entered.set()
        assert self.open.wait(LONG)
        return [item * 10 for item in batch]

    def hold(self) -> None:
        self.entered.clear()
        self.open.clear()


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not reached():
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("batched-"):
            thread.join(5)
            assert not thread.is_alive()


# One in, one out --------------------------------------------------------------------------------------------------


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
    ("outputs", "said"), [([], "0 outputs"), ([1, 2], "2 outputs"), ([1] * 9, "more than 3"), (iter([1]), "1 outputs")]
)
def test_given_a_wrong_number_of_outputs_then_every_caller_is_told(outputs: Any, said: str) -> None:
    with batched(max_batch_size=3, max_delay=LONG)(lambda _: outputs) as predict:
        jobs = [predict.submit(n) for n in range(3)]
        for job in jobs:
            error = job.exception(LONG)
            assert isinstance(error, WrongCount)
            assert "3 inputs" in str(error)
            assert said in str(error)


@pytest.mark.parametrize("outputs", [None, 5, "abc", b"abc", {1: 2, 3: 4, 5: 6}, {1, 2, 3}])
def test_given_outputs_that_cannot_be_matched_then_every_caller_is_told(outputs: Any) -> None:
    with batched(max_batch_size=3, max_delay=LONG)(lambda _: outputs) as predict:
        for job in [predict.submit(n) for n in range(3)]:
            with pytest.raises(TypeError, match="sequence of outputs"):
                job.result(LONG)


# Errors, capacity, context ----------------------------------------------------------------------------------------


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


# The end ----------------------------------------------------------------------------------------------------------


def test_given_close_then_what_waits_is_run_and_later_calls_are_refused(gate: Gate) -> None:
    with batched(max_batch_size=8, max_delay=LONG)(gate) as predict:
        jobs = [predict.submit(n) for n in range(3)]
    assert [job.result(0) for job in jobs] == [0, 10, 20]
    with pytest.raises(Closed):
        predict.call(1)
    with pytest.raises(Closed):
        asyncio.run(_ask(predict))


async def _ask(predict: Batched[int, int]) -> int:
    return await predict(1)


def test_given_close_without_drain_then_who_waits_is_told(gate: Gate) -> None:
    predict = batched(max_batch_size=8, max_delay=LONG)(gate)
    job = predict.submit(1)
    predict.close(drain=False)
    assert isinstance(job.exception(0), Closed)
    assert gate.batches == []


def test_given_a_loop_that_ended_before_its_output_then_the_function_goes_on(gate: Gate) -> None:
    predict = batched(max_batch_size=1, max_delay=0.0)(gate)
    gate.hold()

    async def leave() -> None:
        asyncio.get_running_loop().create_task(predict(1))
        await asyncio.to_thread(gate.entered.wait, LONG)

    asyncio.run(leave())
    gate.open.set()
    assert predict.call(2, LONG) == 20


def test_given_a_thread_that_was_killed_then_the_next_call_starts_another(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = batched(max_batch_size=1, max_delay=0.0)(gate)
    assert predict.call(1, LONG) == 10
    thread = predict._runner._thread
    assert thread is not None
    hooked = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: hooked.set())
    monkeypatch.setattr(predict._runner.batcher, "take", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    predict.submit(2)
    thread.join(LONG)
    assert hooked.wait(LONG)
    monkeypatch.undo()
    assert predict.call(3, LONG) == 30


def test_given_a_function_that_nobody_can_call_any_more_then_its_thread_ends(gate: Gate) -> None:
    predict = batched(max_delay=0.0)(gate)
    predict.call(1, LONG)
    thread = predict._runner._thread
    assert thread is not None
    gone = weakref.ref(predict)
    # The collector runs wherever something is allocated: also in a thread that holds this very lock.
    with predict._runner.batcher._lock:
        del predict
        gc.collect()
    assert gone() is None
    thread.join(LONG)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # it is what is tested
def test_given_a_fork_then_the_child_has_its_own_thread_and_context() -> None:
    predict = batched(max_batch_size=4, max_delay=0.0, context=os.getpid)(lambda batch, pid: [pid] * len(batch))
    assert predict.call(1, LONG) == os.getpid()
    reader, writer = os.pipe()
    locked, unlock = threading.Event(), threading.Event()

    def hold(lock: Any) -> None:
        with lock:
            locked.set()
            unlock.wait(LONG)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold, predict._runner.batcher._lock)
        assert locked.wait(LONG)
        child = os.fork()
        if child == 0:
            try:
                answer = str(predict.call(2, 10)).encode()
                # The lock stays held for ever here: the end of the function must not touch it either.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(5)
                del predict
                gc.collect()
                os.write(writer, answer)
            finally:
                os._exit(0)
        unlock.set()
        holding.result(LONG)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert int(pipe.read()) == child
    assert os.waitpid(child, 0)[1] == 0
    assert predict.call(3, LONG) == os.getpid()


SCRIPT = """
import sys, threading
from clipfleet.batching import Closed, batched

state, = sys.argv[1:]
entered = threading.Event()

@batched(max_batch_size=2, max_delay=0.0 if state in ("idle", "running") else 30.0)
def predict(batch):
    entered.set()
    if state == "running":
        threading.Event().wait(30)
    return batch

def call():
    try:
        predict.call(1)
    except Closed:
        pass

if state == "idle":
    assert predict.call(1) == 1
elif state == "waiting":
    threading.Thread(target=call, daemon=True).start()
else:
    job = predict.submit(1)
    if state == "running":
        entered.wait(30)
"""


@pytest.mark.parametrize("state", ["idle", "waiting", "running", "future"])
def test_given_the_interpreter_ends_then_it_neither_hangs_nor_complains(state: str) -> None:
    start = time.monotonic()
    command = [sys.executable, "-W", "error", "-c", SCRIPT, state]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - start < 25, "30 s would mean that it waited for the function"
