"""`@batched`: one call gives one input and gets one output; the function sees batches. batched-fn's idea, in process.

What differs from batched-fn (Rust): there the window starts when the first item is pulled, here at its arrival; there
`max_delay` 0 means batches of one under a backlog, here batches as full as the backlog makes them; there a panic
(until its 0.2.5 also a caller that went away) ends the batcher for good, here the call concerned alone; there a short
list of outputs drops the callers at its tail in silence, here each caller of that batch gets `WrongCount`.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import weakref
from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from clipfleet.batching.calls import Job
from clipfleet.batching.rule import BatchPolicy
from clipfleet.batching.runner import Runner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future
    from types import TracebackType

    from clipfleet.batching.stage import BatcherStats

In = TypeVar("In")
Out = TypeVar("Out")
Ctx = TypeVar("Ctx")

EXIT_S = 1.0  # at the interpreter's end: how long a run in progress may hold it up


class Batched(Generic[In, Out]):
    """A function that runs in batches and is called with single inputs; made by `@batched`.

    From asyncio (any number of loops): `await f(x)`. From threads: `f.call(x)`. Or `f.submit(x)`, a
    `concurrent.futures.Future`. All of them raise `Full` at once when `capacity` calls are waiting or running.

    A daemon thread starts with the first call, builds the context there, and runs the function. After a fork the
    child has a thread and a context of its own; calls of the parent stay with the parent. What was closed stays so.
    """

    def __init__(
        self,
        function: Callable[..., Iterable[Out | Exception]],
        context: Callable[[], Any] | None,
        policy: BatchPolicy,
        capacity: int,
    ) -> None:
        if inspect.iscoroutinefunction(function):
            raise TypeError("the function runs in a thread of its own and must not be async")
        functools.update_wrapper(self, function)
        name = getattr(function, "__name__", type(function).__name__)
        self._make_runner = functools.partial(Runner, function, context, policy, capacity, name)
        self._renew()
        _live.add(self)

    async def __call__(self, item: In) -> Out:
        """The output for one input.

        A cancelled call is skipped if it still waits, and its output dropped if it runs.

        Raises:
            Full: `capacity` calls are waiting or running.
            Closed: the function was closed.
            WrongCount: the function returned another number of outputs than it got inputs.
            FunctionFailed: the function raised SystemExit or the like.
            RuntimeError: the function awaits itself, or the system has no room for its thread.
            Exception: whatever the function raised or returned for this very input, or the context raised.
        """
        loop = get_running_loop()
        runner = self._runner
        home = runner.homes.get(loop) or runner.new_home(loop)
        future: asyncio.Future[Out] = home.new_future()
        inputs = home.inputs
        if not inputs:
            home.begin()
        inputs.append(item)
        home.futures.append(future)
        if len(inputs) >= runner.size:
            runner.end_turn(home)
        return await future

    def call(self, item: In, timeout: float | None = None) -> Out:
        """The output for one input, for a thread that may block; raises as `await f(x)` does.

        Raises:
            TimeoutError: there was no output within `timeout` seconds; the call is then skipped if it still waits.
            RuntimeError: the function calls itself, and would wait for itself for ever; or as above.
        """
        output: Out = self._runner.ask(item, timeout)
        return output

    def submit(self, item: In) -> Future[Out]:
        """A future of the output for one input; it can be cancelled as long as it waits.

        Raises:
            Full: `capacity` calls are waiting or running.
            Closed: the function was closed.
        """
        job = Job()
        self._runner.put((item, job, None))
        return job

    def stats(self) -> BatcherStats:
        """Batches by reason and by size, waiting times, refusals."""
        return self._runner.stats()

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more calls, and wait until the thread has ended.

        Args:
            drain: run the calls that wait; else they get `Closed`. What is running is always finished.
            timeout: seconds to wait at most; None: no limit.
        """
        self._runner.close(drain=drain, timeout=timeout)

    def __enter__(self) -> Batched[In, Out]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _renew(self) -> None:
        """Start afresh, without a thread."""
        self._runner = self._make_runner()
        # The thread keeps its runner alive, but nothing keeps this alive once nobody can call it: the thread ends.
        self._finalizer = weakref.finalize(self, self._runner.abandon)
        self._finalizer.atexit = False

    def _after_fork(self) -> None:
        # The parent's lock may have been held at the fork, for ever as seen from here: never touch it.
        self._finalizer.detach()
        closed = self._runner.batcher.closed
        self._renew()
        if closed:
            self.close()


_live: weakref.WeakSet[Batched[Any, Any]] = weakref.WeakSet()


def _renew_all() -> None:
    for function in list(_live):
        function._after_fork()  # noqa: SLF001  (this module's own hook)


def _close_all() -> None:
    for function in list(_live):
        function.close(drain=False, timeout=EXIT_S)


os.register_at_fork(after_in_child=_renew_all)
atexit.register(_close_all)


@overload
def batched(
    *, max_batch_size: int = 16, max_delay: float = 0.05, capacity: int = 64, context: None = None
) -> Callable[[Callable[[list[In]], Iterable[Out | Exception]]], Batched[In, Out]]: ...


@overload
def batched(
    *, max_batch_size: int = 16, max_delay: float = 0.05, capacity: int = 64, context: Callable[[], Ctx]
) -> Callable[[Callable[[list[In], Ctx], Iterable[Out | Exception]]], Batched[In, Out]]: ...


def batched(
    *,
    max_batch_size: int = 16,
    max_delay: float = 0.05,
    capacity: int = 64,
    context: Callable[[], Any] | None = None,
) -> Callable[[Callable[..., Iterable[Any]]], Batched[Any, Any]]:
    """Let callers of a function over batches pass one input each and get one output each.

    The decorated function is given a list of 1 to `max_batch_size` inputs (and the context, if there is one) and
    returns as many outputs in the same order; an exception among the outputs is raised to that caller alone. If it
    raises, it is called again with halves of the batch until the guilty input stands alone, so it should not
    have effects that must not happen twice.

    Args:
        max_batch_size: most inputs of one batch.
        max_delay: seconds that the oldest input waits, counted from its call, before its batch runs anyway; 0 takes
            what is there.
        capacity: most calls waiting and running together; the next one raises `Full` at once.
        context: builds what the function needs (a model), once, in the thread that runs the function. If it raises,
            all who wait get the error and the next call tries again.

    Returns:
        A decorator, which gives a `Batched`.

    Raises:
        ValueError: a number is out of its range.
        TypeError: the function is async.
    """
    policy = BatchPolicy(max_batch_size, max_delay)

    def decorate(function: Callable[..., Iterable[Any]]) -> Batched[Any, Any]:
        return Batched(function, context, policy, capacity)

    return decorate
