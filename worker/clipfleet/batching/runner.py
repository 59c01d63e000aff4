"""Inside `@batched`: the thread that owns the context and runs the function.

Threads that call only add to `_gathered`, one step that needs no lock: the thread takes what it finds there as one
batch or, where somebody is to wait for more, queues it, all under one lock; so sixteen callers that were answered
together cost one queueing and one waking. It rests at a bell of its own when there is nothing at all. It may sleep in
the batcher too, for `max_delay` (`_taking`); what comes then is queued by its caller: it may be what fills the batch.

No call is left behind, whichever thread stands still between two of its steps: a caller adds before it looks at
`_resting`, `_taking` and `closed`, and whoever sets one of these looks at `_gathered` after that. Whoever moves calls
to the queue, which are in neither place for a moment, rouses the thread afterwards.
"""

from __future__ import annotations

import sys
import threading
import time
from asyncio import get_running_loop
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clipfleet.batching.batcher import Batcher
from clipfleet.batching.calls import (
    Call,
    Home,
    Slot,
    Turn,
    await_outcome,
    fail,
    for_queue,
    locked,
    portable,
    run_gathered,
    run_wanted,
    settle,
    settle_futures,
)
from clipfleet.batching.errors import Closed
from clipfleet.batching.stage import Stage

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Sequence

    from clipfleet.batching.rule import BatchPolicy
    from clipfleet.batching.stage import Batch, BatcherStats

ITSELF = "a batched function cannot wait for itself"


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
        self._load = context  # what is still to be loaded
        self._call: Callable[[list[Any]], Any] = function  # with the context, once that is loaded
        self.size = policy.max_batch_size
        self.homes: dict[AbstractEventLoop, Home] = {}
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.ident: int | None = None  # of the thread that runs the function
        self._capacity = capacity
        self._gathered: deque[Slot | Turn] = deque()
        self._turned = 0  # calls in turns that were gathered
        self._locks: list[threading.Lock] = []  # of callers that rest
        self._running = 0  # of the batch that was taken: what counts as in flight still
        self._resting = self._taking = False
        self._bell = threading.Lock()  # open = rung
        self._bell.acquire()

    # In the callers' threads --------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        """Queue one call; raises `Full` or `Closed`."""
        self._queue_gathered()
        try:
            self.batcher.put(call)
        finally:  # refused or not: who asked for what was gathered may have been interrupted before it roused anybody
            self._rouse()

    def ask(self, item: Any, timeout: float | None) -> Any:
        """The outcome of one call; the thread that calls is blocked meanwhile.

        Where several come for the last place at once, one of them may find its refusal there.

        Raises:
            Full, Closed: as `put`.
            TimeoutError: as `await_outcome`.
            RuntimeError: the function calls itself.
        """
        if self.ident == threading.get_ident():
            raise RuntimeError(ITSELF)
        gathered, stage, locks = self._gathered, self._stage, self._locks
        slot = Slot()
        slot.item = item
        slot.asked_at = time.monotonic()
        try:
            slot.ready = ready = locks.pop()
        except IndexError:
            slot.ready = ready = locked()
        try:
            if stage.in_flight + stage.queue.count + len(gathered) + self._turned >= self._capacity:
                self.put((item, slot, None))
            else:
                gathered.append(slot)
                if self._taking or stage.closed:
                    self._queue_gathered()
                if self._thread is None or (self._resting and self._bell.locked()):
                    self._rouse()
        except BaseException:  # Ctrl-C too: nobody will wait for it
            slot.ready = None
            raise
        outcome = await_outcome(slot, ready, timeout)
        locks.append(ready)  # it was released for the outcome and is held again: by nobody but this thread
        return outcome

    def new_home(self, loop: AbstractEventLoop) -> Home:
        """Where the calls of the running loop are gathered; RuntimeError if it is the function that runs the loop."""
        if self.ident == threading.get_ident():
            raise RuntimeError(ITSELF)
        for other in list(self.homes):
            if other.is_closed():
                self.homes.pop(other, None)
        home = self.homes[loop] = Home(loop, self.end_turn)
        return home

    def end_turn(self, home: Home) -> None:
        """See to the calls that were gathered; for which there is no room, gets `Full`."""
        turn = home.take()
        if len(turn.inputs) == self.size and self._stage.takes_all and self._gather(turn):
            return
        self._queue_gathered()  # those were first
        fitting, error = self.batcher.put_fitting(turn.calls(), enqueued_at=turn.since)
        self._rouse()
        if error is not None:
            settle_futures(turn.futures[fitting:], [error] * (len(turn.futures) - fitting))

    def _gather(self, turn: Turn) -> bool:
        """A batch that is full as it is can be run as it is; False if it has to be queued."""
        with self._lock:
            stage, count = self._stage, self.size
            if stage.queue.count or stage.room < count + len(self._gathered) + self._turned:
                return False
            self._gathered.append(turn)
            self._turned += count
        if self._taking or stage.closed:
            self._queue_gathered()
        self._rouse()
        return True

    def close(self, *, drain: bool, timeout: float | None) -> None:
        """Refuse further calls, run (`drain`) or fail those that wait, and wait for the thread."""
        with suppress(RuntimeError):  # no loop runs here
            home = self.homes.get(get_running_loop())
            if home is not None and home.inputs:  # the loop that closes asked in this very turn
                self.end_turn(home)
        self._queue_gathered()
        fail(self.batcher.close(drain=drain), Closed())
        self._queue_gathered()  # what came meanwhile is refused
        self._rouse()  # starts it, too, where who asked first has not come to that yet
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
            self._turned = 0
            refused = list[tuple[list[Call], Exception]]()
            for calls, since in for_queue(self._pull_gathered(sys.maxsize)):
                fitting, error = self.batcher.put_fitting(calls, enqueued_at=since)
                if error is not None:
                    refused.append((calls[fitting:], error))
        self._rouse()  # while they were neither here nor in the queue, it may have gone to rest
        for calls, why in refused:
            fail(calls, why)

    def _pull_gathered(self, most: int) -> list[Any]:
        """With the lock held: what is pulled once is nobody else's."""
        pull = self._gathered.popleft
        return [pull() for _ in range(min(most, len(self._gathered)))]

    def _rouse(self) -> None:
        """Something is there: see that the thread does, which may not have begun."""
        if self._thread is None and not self._stage.exhausted:
            self._start()
        elif self._resting:
            self._ring()

    def _ring(self) -> None:
        if self._bell.locked():
            with suppress(RuntimeError):  # rung by another thread
                self._bell.release()

    def _start(self) -> None:
        """Start the thread, or tell all who wait that there is none."""
        failed: BaseException | None = None
        with self._starting:
            if self._thread is None and not self._stage.exhausted:
                self._thread = threading.Thread(target=self._work, name=f"batched-{self.batcher.name}", daemon=True)
                try:
                    self._thread.start()
                except BaseException as error:  # noqa: BLE001  (also Ctrl-C, which is raised below)
                    failed, self._thread = error, None  # should it have started all the same, it leaves
        if failed is None:
            return
        wrong = RuntimeError(f"the thread of {self.batcher.name} did not start: {failed}")
        wrong.__cause__ = failed
        self._queue_gathered()
        fail(self.batcher.drain(), wrong)
        if not isinstance(failed, Exception):
            raise failed

    # In the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._starting:
            if self._thread is not threading.current_thread():
                return
        self.ident = threading.get_ident()
        try:
            while True:
                if not self._gathered:
                    self._rest()
                self._work_once()
        except Closed:
            return
        finally:
            # Should anything stop the thread (PyThreadState_SetAsyncExc can, anywhere), the next call starts another.
            self._leave(self._running, None)
            self.ident = None
            self._thread = None

    def _rest(self) -> None:
        """Until there is something to do."""
        gathered, stage = self._gathered, self._stage
        self._resting = True
        while not (gathered or stage.queue.count or stage.closed):
            self._bell.acquire()
        self._resting = False

    def _work_once(self) -> None:
        if self._load is not None:
            self._load_context(self._load)
            return
        if self._gathered and self._run_gathered():
            return
        try:
            batch = self._take()
        finally:
            self._taking = False
        if batch is None:
            return
        self._running = len(batch)
        try:
            run_wanted(self._call, batch.items, self._leave)
        except BaseException as error:  # noqa: BLE001  (whatever happens, nobody may be left waiting)
            fail(batch.items, portable(error))
        self._leave(self._running, None)

    def _run_gathered(self) -> bool:
        """Run a batch of what was gathered as it stands; False if it has to be queued."""
        with self._lock:
            taken = self._pass_through()
        if taken is None:
            return False
        inputs, sinks, homes = taken
        try:
            run_gathered(self._call, inputs, sinks, homes, self._leave)
        except BaseException as error:  # noqa: BLE001  (whatever happens, nobody may be left waiting)
            settle(sinks, homes, [portable(error)] * len(inputs))
        self._leave(self._running, None)
        return True

    def _pass_through(self) -> tuple[list[Any], Sequence[Any], Home | None] | None:
        """Inputs, who waits for them, and their home, of the next batch; with the lock held."""
        gathered = self._gathered
        head = gathered[0] if gathered else None
        if head is None:
            return None
        if isinstance(head, Turn):
            count, since = len(head.inputs), head.since
        elif self._turned:  # the queue makes full batches of both
            return None
        else:
            count, since = min(len(gathered), self.size), head.asked_at
        if not self._stage.pass_through(count, since, time.monotonic()):
            return None
        self._running = count
        if isinstance(head, Turn):
            gathered.popleft()
            self._turned -= count
            return head.inputs, head.futures, head.home
        slots = self._pull_gathered(count)
        return [slot.item for slot in slots], slots, None

    def _leave(self, count: int, seconds: float | None) -> None:
        # Before anybody hears of it: who asks again at once finds the place free.
        self._running -= count
        self._stage.left(count, seconds)

    def _take(self) -> Batch[Call] | None:
        """The next batch out of the queue."""
        self._taking = True  # what comes from now on is put into the batcher by its caller
        self._queue_gathered()
        return self.batcher.take()

    def _load_context(self, load: Callable[[], Any]) -> None:
        """Build the context in the thread that will use it.

        If that fails, so do all who wait, and the next call tries again.
        """
        self._taking = True
        self._queue_gathered()
        self.batcher.wait()
        self._taking = False
        try:
            context = load()
        except BaseException as error:  # noqa: BLE001  (a SystemExit in a loader must not leave callers hanging)
            self._queue_gathered()
            fail(self.batcher.drain(), portable(error))
        else:
            function = self._function
            self._call = lambda batch: function(batch, context)
            self._load = None
