"""Inside `@batched`: the thread that owns the context and runs the function.

Threads that call only add to `_gathered`, one step that needs no lock: the thread takes what it finds there as one
batch or, where somebody is to wait for more, queues it, all under one lock; so sixteen callers that were answered
together cost one queueing and one waking. It rests at a bell of its own when there is nothing at all. It may sleep in
the batcher too, for `max_delay`; what comes then is queued by its caller, since it may be what fills the batch
(`_taking`).

No call is left behind, whichever thread stands still between two of its steps: a caller adds before it looks at
`_resting`, `_taking` and `closed`, and whoever sets one of these looks at `_gathered` after that.
"""

from __future__ import annotations

import threading
import time
from asyncio import get_running_loop
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clipfleet.batching.batcher import Batcher
from clipfleet.batching.calls import Call, Calls, Home, claimed, fail, outcomes_of, portable, settle, settle_futures
from clipfleet.batching.errors import Closed
from clipfleet.batching.stage import Stage

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from clipfleet.batching.rule import BatchPolicy
    from clipfleet.batching.stage import Batch, BatcherStats


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
        self._stage: Stage[Call] = Stage(policy, capacity=capacity, name=name)
        self.batcher: Batcher[Call] = Batcher(policy, stage=self._stage)
        self._lock = self._stage.monitor.lock
        self._function = function
        self._load = context
        self._arguments: tuple[Any, ...] | None = () if context is None else None
        self.size = policy.max_batch_size
        self.homes: dict[AbstractEventLoop, Home] = {}
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.ident: int | None = None  # of the thread that runs the function
        self._gathered: deque[Call] = deque()
        self._gathered_at = 0.0
        self._resting = self._taking = False
        self._bell = threading.Lock()  # open = rung
        self._bell.acquire()

    # In the callers' threads --------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        """Queue one call.

        Raises:
            Full: there is no room.
            Closed: the function was closed.
        """
        self._queue_gathered()
        self.batcher.put(call)
        self._rouse()

    def put_soon(self, call: Call) -> None:
        """As `put`, for a caller that waits for its outcome in any case.

        Where several come for the last place at once, one of them may find its refusal there.
        """
        gathered, stage = self._gathered, self._stage
        if stage.room <= len(gathered):
            self.put(call)
            return
        if not gathered:
            self._gathered_at = time.monotonic()
        gathered.append(call)
        if self._taking or stage.closed:
            self._queue_gathered()
        if self._thread is None or (self._resting and self._bell.locked()):
            self._rouse()

    def new_home(self, loop: AbstractEventLoop) -> Home:
        """Where the calls of the running loop are gathered."""
        for other in list(self.homes):
            if other.is_closed():
                self.homes.pop(other, None)
        home = self.homes[loop] = Home(loop, self.end_turn)
        return home

    def end_turn(self, home: Home) -> None:
        """Queue the calls that were gathered; for which there is no room, gets `Full`."""
        calls, home.calls = home.calls, []
        fitting, error = self.batcher.put_fitting(calls, enqueued_at=home.calls_at)
        self._rouse()
        if error is not None:
            settle_futures([call[1] for call in calls[fitting:]], [error] * (len(calls) - fitting))

    def close(self, *, drain: bool, timeout: float | None) -> None:
        """Refuse further calls, run (`drain`) or fail those that wait, and wait for the thread."""
        with suppress(RuntimeError):  # no loop runs here
            home = self.homes.get(get_running_loop())
            if home is not None and home.calls:  # the loop that closes asked in this very turn
                self.end_turn(home)
        self._queue_gathered()
        fail(self.batcher.close(drain=drain), Closed())
        self._queue_gathered()  # what came meanwhile is refused
        self._ring()
        with self._starting:  # a thread that is about to start cannot be joined yet
            thread = self._thread
        if thread is not None and self.ident != threading.get_ident():
            thread.join(timeout)

    def abandon(self) -> None:
        """Nobody can call any more. Waits for nothing: the garbage collector asks, in the midst of anything."""
        self.batcher.close()
        self._ring()

    def stats(self) -> BatcherStats:
        """See `Batcher.stats`."""
        self._queue_gathered()
        return self.batcher.stats()

    def _queue_gathered(self) -> None:
        if not self._gathered:
            return
        with self._lock:  # whoever closes the queue meanwhile finds them in it: calls that waited, and are run
            at = self._gathered_at
            calls = self._pull_gathered()
            fitting, error = self._queue(calls, at)
        if error is not None:
            fail(calls[fitting:], error)

    def _pull_gathered(self) -> list[Call]:
        gathered, calls = self._gathered, list[Call]()
        while gathered:
            try:
                calls.append(gathered.popleft())
            except IndexError:  # another thread's by now
                break
        return calls

    def _queue(self, calls: list[Call], at: float) -> tuple[int, Exception | None]:
        # All as old as the first: none waits longer than `max_delay` from its call.
        return self.batcher.put_fitting(calls, enqueued_at=at) if calls else (0, None)

    def _rouse(self) -> None:
        """Something is there: see that the thread does, which may not have begun."""
        if self._thread is None:
            self._start()
        elif self._resting:
            self._ring()

    def _ring(self) -> None:
        if self._bell.locked():
            with suppress(RuntimeError):  # rung by another thread
                self._bell.release()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                name = f"batched-{self.batcher.name}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    # In the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.ident = threading.get_ident()
        try:
            while True:
                self._rest()
                self._work_once()
        except Closed:
            return
        finally:
            self.ident = None
            # Should anything stop the thread (PyThreadState_SetAsyncExc can, anywhere), the next call starts another.
            self._thread = None

    def _rest(self) -> None:
        """Until there is something to do."""
        batcher = self.batcher
        while not (self._gathered or len(batcher) or batcher.closed):
            self._resting = True
            if not (self._gathered or len(batcher) or batcher.closed):
                self._bell.acquire()
            self._resting = False

    def _work_once(self) -> None:
        if self._arguments is None:
            self._load_context()
            return
        try:
            batch = self._take()
        finally:
            self._taking = False
        if batch is None:
            return
        try:
            calls = claimed(batch.items)
            if calls is not None:
                self._run(calls, self._arguments, batch)
        except BaseException as error:  # noqa: BLE001  (whatever happens, nobody may be left waiting)
            fail(batch.items, portable(error))
        batch.done()

    def _take(self) -> Batch[Call] | None:
        """The next batch; what was gathered is one as it stands, where nobody is to wait for more."""
        if self._gathered:
            with self._lock:
                at = self._gathered_at
                calls = self._pull_gathered()
                batch = self.batcher.pass_through(calls, enqueued_at=at)
                fitting, error = (0, None) if batch is not None else self._queue(calls, at)
            if batch is not None:
                return batch
            if error is not None:
                fail(calls[fitting:], error)
        self._taking = True  # what comes from now on is put into the batcher by its caller
        self._queue_gathered()
        return self.batcher.take()

    def _load_context(self) -> None:
        """Build the context in the thread that will use it.

        If that fails, so do all who wait, and the next call tries again.
        """
        self._taking = True
        self._queue_gathered()
        self.batcher.wait()
        self._taking = False
        try:
            self._arguments = () if self._load is None else (self._load(),)
        except BaseException as error:  # noqa: BLE001  (a SystemExit in a loader must not leave callers hanging)
            self._queue_gathered()
            fail(self.batcher.drain(), portable(error))

    def _run(self, calls: Calls, arguments: tuple[Any, ...], batch: Batch[Call]) -> None:
        """Run and settle the calls; if the function raises, halve until the guilty input stands alone.

        Halving and not one by one: one guilty input among 64 costs 12 runs more instead of 64, and all guilty ones
        less than twice as many. Each good half is settled as soon as it has run.
        """
        count = len(calls.inputs)
        start = time.monotonic()
        try:
            outcomes = outcomes_of(self._function(list(calls.inputs), *arguments), count)
        except BaseException as error:  # noqa: BLE001  (also the SystemExit of one input is its own alone)
            if count == 1:
                settle(calls, [error])
                return
        else:
            seconds = time.monotonic() - start
            # Before anybody hears of it: who calls again at once finds the place free, and this thread at rest.
            if count == len(batch):
                batch.done(seconds)
            else:
                self.batcher.record_run(count, seconds)
            settle(calls, outcomes)
            return
        middle = count // 2
        self._run(calls.part(slice(middle)), arguments, batch)
        self._run(calls.part(slice(middle, None)), arguments, batch)
