"""`@batched`: close, ended loops, killed threads, forks, the end of the interpreter."""

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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clipfleet.batching import Batched, Closed, batched
from support.gate import LONG, Gate


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
