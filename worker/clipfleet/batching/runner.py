"""Inside `@batched`: the thread that owns the context, runs the function and settles the calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from clipfleet.batching.batcher import Batcher
from clipfleet.batching.errors import Closed, FunctionFailed, WrongCount

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from clipfleet.batching.rule import BatchPolicy


class Slot:
    """Where a blocked thread gets its outcome: one bare lock, a fifth of the cost of a `Future`."""

    __slots__ = ("_abandoned", "_outcome", "_ready", "_settled")

    def __init__(self) -> None:
        self._ready = threading.Lock()
        self._ready.acquire()
        self._abandoned = self._settled = False
        self._outcome: Any = None

    def claim(self) -> bool:
        """Whether somebody still waits."""
        return not self._abandoned

    def settle(self, outcome: Any) -> None:
        """Wake the waiting thread; the first outcome counts."""
        if not self._settled:
            self._settled = True
            self._outcome = outcome
            self._ready.release()

    def wait(self, timeout: float | None) -> Any:
        """The outcome, raised if it is an error; TimeoutError after `timeout` seconds."""
        if not self._ready.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)):
            self._abandoned = True
            raise TimeoutError(f"no result within {timeout} s")
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Job(Future[Any]):
    """A `Future` with a slot's two verbs."""

    def claim(self) -> bool:
        """Whether it was not cancelled; from here on it cannot be."""
        return self.set_running_or_notify_cancel()

    def settle(self, outcome: Any) -> None:
        """Give it its outcome."""
        # Somebody else may have settled it by hand, as with any Future.
        with suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)


# An input with who waits for it: an `asyncio.Future` and its loop, or a `Slot` or `Job` and None. A bare tuple, as one
# is made for each call.
Call: TypeAlias = "tuple[Any, Any, asyncio.AbstractEventLoop | None]"


class Runner:
    """One function's queue and thread; the thread starts with the first call, and ends when the queue is closed."""

    def __init__(
        self,
        function: Callable[..., Any],
        context: Callable[[], Any] | None,
        policy: BatchPolicy,
        capacity: int,
        name: str,
    ) -> None:
        self.batcher: Batcher[Call] = Batcher(policy, capacity=capacity, name=name)
        self._function = function
        self._load = context
        self._arguments: tuple[Any, ...] | None = () if context is None else None
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, call: Call) -> None:
        """Queue one call.

        Raises:
            Full: there is no room.
            Closed: the function was closed.
        """
        self.batcher.put(call)
        if self._thread is None:
            self._start()

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the function itself."""
        return self._thread is threading.current_thread()

    def close(self, *, drain: bool, timeout: float | None) -> None:
        """Refuse further calls, run (`drain`) or fail those that wait, and wait for the thread."""
        fail(self.batcher.close(drain=drain), Closed())
        thread = self._thread
        if thread is not None and not self.is_current_thread:
            thread.join(timeout)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"batched-{self.batcher.name}", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        try:
            while True:
                self._work_once()
        except Closed:
            return
        finally:
            # Should anything stop the thread (PyThreadState_SetAsyncExc can, anywhere), the next call starts another.
            self._thread = None

    def _work_once(self) -> None:
        if self._arguments is None:
            self._load_context()
            return
        batch = self.batcher.take()
        if batch is not None:
            self._run_all(batch.items, self._arguments)
            batch.done()

    def _load_context(self) -> None:
        """Build the context in the thread that will use it; if it fails, so do all who wait, and the next call tries."""
        self.batcher.wait()
        try:
            self._arguments = () if self._load is None else (self._load(),)
        except BaseException as error:  # noqa: BLE001  (SystemExit in a loader must not end the thread: callers hang)
            fail(self.batcher.drain(), portable(error))

    def _run_all(self, calls: list[Call], arguments: tuple[Any, ...]) -> None:
        try:
            wanted = [call for call in calls if claim(call)]
            if wanted:
                self._run(wanted, arguments)
        except BaseException as error:  # noqa: BLE001  (whatever happens, nobody may be left waiting)
            fail(calls, portable(error))

    def _run(self, calls: Sequence[Call], arguments: tuple[Any, ...]) -> None:
        """Run and settle the calls; if the function raises, halve until the guilty input stands alone.

        Halving and not one by one: one guilty input among 64 costs 13 runs more instead of 64, and all guilty ones
        less than twice as many. Each good half is settled as soon as it has run.
        """
        inputs = [call[0] for call in calls]
        start = time.monotonic()
        try:
            outcomes = outcomes_of(self._function(inputs, *arguments), len(calls))
        except BaseException as error:  # noqa: BLE001  (SystemExit or KeyboardInterrupt of one input is its own)
            if len(calls) == 1:
                settle(calls, [portable(error)])
                return
        else:
            self.batcher.record_run(len(calls), time.monotonic() - start)
            settle(calls, outcomes)
            return
        middle = len(calls) // 2
        self._run(calls[:middle], arguments)
        self._run(calls[middle:], arguments)


def outcomes_of(outputs: Any, count: int) -> list[Any]:
    """The function's outputs as a list of `count` outcomes; all the same error if they cannot be matched."""
    if isinstance(outputs, list) and len(outputs) == count:
        return outputs
    # What is iterable but has no order, or whose elements are no outputs, would be matched wrongly in silence.
    if isinstance(outputs, str | bytes | Mapping | AbstractSet) or not isinstance(outputs, Iterable):
        wrong = TypeError(f"the function must return a sequence of outputs, not {type(outputs).__name__}")
        return [wrong] * count
    listed = list(islice(outputs, count + 1))
    if len(listed) == count:
        return listed
    some = str(len(listed)) if len(listed) < count else f"more than {count}"
    return [WrongCount(count, some)] * count


def portable(error: BaseException) -> Exception:
    """An error that can be raised in the caller without stopping its thread or event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return FunctionFailed(error)


def claim(call: Call) -> bool:
    """Whether anybody still waits for the call."""
    _, sink, loop = call
    return sink.claim() if loop is None else not sink.cancelled()


def settle(calls: Sequence[Call], outcomes: Sequence[Any]) -> None:
    """Give each call its outcome; one wake-up for each event loop, not for each call."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for (_, sink, loop), given in zip(calls, outcomes, strict=True):
        outcome = portable(given) if isinstance(given, BaseException) else given
        if loop is None:
            sink.settle(outcome)
        elif loop in loops:
            loops[loop].append((sink, outcome))
        else:
            loops[loop] = [(sink, outcome)]
    for loop, settled in loops.items():
        # A closed loop: those who waited in it are gone.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle_futures, settled)


def settle_futures(settled: list[tuple[asyncio.Future[Any], Any]]) -> None:
    """In the loop's own thread: give each future that is still wanted its outcome."""
    for future, outcome in settled:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def fail(calls: Sequence[Call], error: Exception) -> None:
    """Give all calls the same error; those already settled or not wanted keep what they have."""
    settle(calls, [error] * len(calls))
