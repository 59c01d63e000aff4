"""Inside `@batched`: the thread that owns the context and runs the function."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from clipfleet.batching.batcher import Batcher
from clipfleet.batching.calls import Call, claimed, fail, outcomes_of, portable, settle, settle_futures
from clipfleet.batching.errors import Closed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Sequence

    from clipfleet.batching.rule import BatchPolicy


class Turn(list[Call]):
    """The calls made in one turn of an event loop, and when the first was made."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at


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
        self.size = policy.max_batch_size
        self.turns: dict[AbstractEventLoop, Turn] = {}
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    # In the callers' threads --------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        """Queue one call.

        Raises:
            Full: there is no room.
            Closed: the function was closed.
        """
        self.batcher.put(call)
        if self._thread is None:
            self._start()

    def new_turn(self, loop: AbstractEventLoop) -> Turn:
        """Gather the calls that are made in this turn of the running loop, and queue them at its end."""
        for other in list(self.turns):
            if other.is_closed():
                self.turns.pop(other, None)
        turn = self.turns[loop] = Turn(time.monotonic())
        loop.call_soon(self.end_turn, loop)
        return turn

    def end_turn(self, loop: AbstractEventLoop) -> None:
        """Queue the calls that were gathered; for which there is no room, gets `Full`."""
        turn = self.turns.pop(loop, None)
        if turn is None:
            return
        fitting, error = self.batcher.put_fitting(turn, enqueued_at=turn.at)
        if self._thread is None:
            self._start()
        if error is not None:
            settle_futures(turn[fitting:], [error] * (len(turn) - fitting))

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the function itself."""
        return self._thread is threading.current_thread()

    def close(self, *, drain: bool, timeout: float | None) -> None:
        """Refuse further calls, run (`drain`) or fail those that wait, and wait for the thread."""
        fail(self.batcher.close(drain=drain), Closed())
        with self._starting:  # a thread that is about to start cannot be joined yet
            thread = self._thread
        if thread is not None and not self.is_current_thread:
            thread.join(timeout)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                name = f"batched-{self.batcher.name}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    # In the thread ------------------------------------------------------------------------------------------------

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
        if batch is None:
            return
        try:
            calls = claimed(batch.items)
            if calls:
                self._run(calls, self._arguments)
        except BaseException as error:  # noqa: BLE001  (whatever happens, nobody may be left waiting)
            fail(batch.items, portable(error))
        batch.done()

    def _load_context(self) -> None:
        """Build the context in the thread that will use it.

        If that fails, so do all who wait, and the next call tries again.
        """
        self.batcher.wait()
        try:
            self._arguments = () if self._load is None else (self._load(),)
        except BaseException as error:  # noqa: BLE001  (a SystemExit in a loader must not leave callers hanging)
            fail(self.batcher.drain(), portable(error))

    def _run(self, calls: Sequence[Call], arguments: tuple[Any, ...]) -> None:
        """Run and settle the calls; if the function raises, halve until the guilty input stands alone.

        Halving and not one by one: one guilty input among 64 costs 12 runs more instead of 64, and all guilty ones
        less than twice as many. Each good half is settled as soon as it has run.
        """
        start = time.monotonic()
        try:
            outcomes = outcomes_of(self._function([call[0] for call in calls], *arguments), len(calls))
        except BaseException as error:  # noqa: BLE001  (also the SystemExit of one input is its own alone)
            if len(calls) == 1:
                settle(calls, [error])
                return
        else:
            seconds = time.monotonic() - start
            settle(calls, outcomes)
            self.batcher.record_run(len(calls), seconds)
            return
        middle = len(calls) // 2
        self._run(calls[:middle], arguments)
        self._run(calls[middle:], arguments)
