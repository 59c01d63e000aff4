"""Inside `@batched`: who waits for an output, and how it is given to them."""

from __future__ import annotations

import logging
import threading
import time
from asyncio import InvalidStateError as FutureDone
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, InvalidStateError
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from clipfleet.batching.errors import FunctionFailed, WrongCount

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as AsyncFuture
    from collections.abc import Callable, Sequence

# An input with who waits for it: an `asyncio.Future` and its `Home`, or a `Slot` or `Job` and None. A bare tuple, as
# one is made for each call. A thread's call is its `Slot` alone as long as it need not be queued.
Call: TypeAlias = "tuple[Any, Any, Home | None]"
# Those of many calls: side by side, or one for all; None: all are slots.
Homes: TypeAlias = "Sequence[Home | None] | Home | None"
# Told that so many inputs are done, and what seconds their run took; None if there was none, or it raised.
Left: TypeAlias = "Callable[[int, float | None], None]"

LOGGER = logging.getLogger(__name__)


class Home:
    """An event loop whose tasks call: what they ask for in one turn of it, and the outcomes on their way there.

    Both ways whatever is a step with a cost of its own is done for many calls: the queue's lock is taken once for the
    calls of a turn, and the loop is woken once for all outcomes that come before it has looked.
    """

    __slots__ = ("_asked", "_loop", "_put", "_said", "_told", "futures", "inputs", "new_future", "since")

    def __init__(self, loop: AbstractEventLoop, put: Callable[[Home], None]) -> None:
        self._loop = loop
        self._put = put
        self.new_future: Callable[[], AsyncFuture[Any]] = loop.create_future
        self.inputs: list[Any] = []
        self.futures: list[AsyncFuture[Any]] = []  # one for each input
        self.since = 0.0  # when the first of them was asked for
        self._asked = self._told = False
        self._said: deque[tuple[Sequence[Any], list[Any]]] = deque()

    def begin(self) -> None:
        """The first call of a turn is made: see that what is gathered is put at the turn's end."""
        self.since = time.monotonic()
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._asked = False
        if self.inputs:  # else they were a batch already
            self._put(self)

    def take(self) -> Turn:
        """What was gathered, which begins anew."""
        turn = Turn(self, self.inputs, self.futures, self.since)
        self.inputs, self.futures = [], []
        return turn

    def tell(self, futures: Sequence[Any], outcomes: Sequence[Any]) -> None:
        """Give each future its outcome, in the loop's own thread; from any thread."""
        # Said before it is looked whether the loop was told, and told is taken back before it is looked what was said.
        self._said.append((futures, list(outcomes)))  # the function may use its list again before the loop has read it
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._hand_over)
            except RuntimeError:  # closed: those who waited in it are gone
                self._told = False
                self._said.clear()

    def _hand_over(self) -> None:
        self._told = False
        said = self._said
        while said:
            settle_futures(*said.popleft())


class Turn:
    """Calls of one turn of a loop, side by side: what is done for each is then a step of Python's own loops."""

    __slots__ = ("futures", "home", "inputs", "since")

    def __init__(self, home: Home, inputs: list[Any], futures: list[AsyncFuture[Any]], since: float) -> None:
        self.home = home
        self.inputs = inputs
        self.futures = futures
        self.since = since

    def calls(self) -> list[Call]:
        """Each by itself, for the queue."""
        return list(zip(self.inputs, self.futures, repeat(self.home)))


class Slot:
    """A call of a blocked thread: its input and, later, its outcome; one bare lock, much cheaper than a `Future`.

    Made for each call, so that an outcome that comes late reaches nobody else; only the lock is used again, by the one
    thread that knows that nobody will release it any more. No `__init__`, which would cost as much as all of it.

    Attributes:
        item: the input.
        asked_at: when it was asked for, by `time.monotonic()`.
        ready: locked until there is an outcome; None once nobody waits for one: it has come, or its caller is gone.
        outcome: what came.
    """

    __slots__ = ("asked_at", "item", "outcome", "ready")
    item: Any
    asked_at: float
    ready: threading.Lock | None
    outcome: Any

    def claim(self) -> bool:
        """Whether somebody still waits."""
        return self.ready is not None

    def settle(self, outcome: Any) -> None:
        """Wake the waiting thread; the first outcome counts."""
        ready = self.ready
        if ready is not None:
            self.outcome = outcome
            self.ready = None
            ready.release()


def for_queue(gathered: Iterable[Slot | Turn]) -> list[tuple[list[Call], float]]:
    """What was gathered, as calls that are put together and when the first of them was asked for."""
    parts = [(each.calls(), each.since) for each in gathered if isinstance(each, Turn)]
    slots = [each for each in gathered if isinstance(each, Slot)]
    if slots:  # all as old as the first: none waits longer than `max_delay` from its call
        parts.append(([(slot.item, slot, None) for slot in slots], slots[0].asked_at))
    return parts


def locked() -> threading.Lock:
    """A lock that is held already."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def await_outcome(slot: Slot, ready: threading.Lock, timeout: float | None) -> Any:
    """The outcome of a slot that was asked, raised if it is an error.

    Raises:
        TimeoutError: there was none after `timeout` seconds; the slot is then given up.
    """
    there = False
    try:
        there = ready.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))
    finally:
        if not there:  # also where Ctrl-C ended the wait
            slot.ready = None
    if not there:
        raise TimeoutError(f"no output within {timeout} s")
    outcome = slot.outcome
    if isinstance(outcome, BaseException):
        raise portable(outcome)
    return outcome


class Job(Future[Any]):
    """A `Future` with a slot's two verbs."""

    def claim(self) -> bool:
        """Whether it was not cancelled; from here on it cannot be."""
        return self.set_running_or_notify_cancel()

    def settle(self, outcome: Any) -> None:
        """Give it its outcome, unless it was cancelled or has one."""
        try:
            if isinstance(outcome, BaseException):
                self.set_exception(portable(outcome))
            else:
                self.set_result(outcome)
        except InvalidStateError:
            pass
        except BaseException:  # a callback's own SystemExit or the like: others of the batch are not to suffer from it
            LOGGER.exception("a callback of a future raised")


def settle(sinks: Sequence[Any], homes: Homes, outcomes: Sequence[Any]) -> None:
    """Give each call its outcome; one wake-up for each event loop, not for each call."""
    if homes is None:
        for slot, outcome in zip(sinks, outcomes, strict=True):
            slot.settle(outcome)
        return
    if isinstance(homes, Home):
        homes.tell(sinks, outcomes)
        return
    for home in set(homes):
        mine, theirs = sinks, outcomes
        if homes.count(home) < len(homes):
            places = [place for place, other in enumerate(homes) if other is home]
            mine, theirs = [sinks[place] for place in places], [outcomes[place] for place in places]
        if home is not None:
            home.tell(mine, theirs)
            continue
        for sink, outcome in zip(mine, theirs, strict=True):
            sink.settle(outcome)


def run(
    function: Callable[[list[Any]], Any],
    inputs: Sequence[Any],
    sinks: Sequence[Any],
    homes: Homes,
    left: Left,
) -> None:
    """Run and settle calls; if the function raises, halve until the guilty input stands alone.

    Halving and not one by one: one guilty input among 64 costs 12 runs more instead of 64, and all guilty ones
    less than twice as many. Each good half is settled as soon as it has run.

    Args:
        function: of a list of inputs.
        inputs: of each call.
        sinks: who waits for each.
        homes: theirs.
        left: told of each run. Before anybody hears of it: who calls again at once finds the place free, and this
            thread at rest.
    """
    count = len(inputs)
    start = time.monotonic()
    try:
        outcomes = outcomes_of(function(list(inputs)), count)
    except BaseException as error:  # noqa: BLE001  (also the SystemExit of one input is its own alone)
        if count == 1:
            left(1, None)
            settle(sinks, homes, [error])
            return
    else:
        left(count, time.monotonic() - start)
        settle(sinks, homes, outcomes)
        return
    for part in (slice(count // 2), slice(count // 2, None)):
        run(function, inputs[part], sinks[part], homes if isinstance(homes, Home) else homes and homes[part], left)


def run_wanted(function: Callable[[list[Any]], Any], calls: list[Call], left: Left) -> None:
    """As `run`, those of the calls for which somebody still waits; from here on a `Job` cannot be cancelled."""
    gone = [not sink.claim() if home is None else sink.cancelled() for _, sink, home in calls]
    if True in gone:
        calls = [call for call, is_gone in zip(calls, gone, strict=True) if not is_gone]
        left(len(gone) - len(calls), None)  # who is gone may be asking again
    if calls:
        inputs, sinks, homes = zip(*calls, strict=True)
        run(function, inputs, sinks, homes, left)


def run_gathered(
    function: Callable[[list[Any]], Any], inputs: list[Any], sinks: Sequence[Any], home: Home | None, left: Left
) -> None:
    """As `run_wanted`, futures of one home, or slots: as they stand where nobody is gone."""
    if home is None:
        gone = True in [slot.ready is None for slot in sinks]
    else:
        gone = True in [future.cancelled() for future in sinks]
    if gone:
        run_wanted(function, list(zip(inputs, sinks, repeat(home))), left)
    else:
        run(function, inputs, sinks, home, left)


def settle_futures(futures: Sequence[Any], outcomes: list[Any]) -> None:
    """In the loop's own thread: give each future that is still wanted its outcome."""
    for future, outcome in zip(futures, outcomes, strict=True):
        try:
            if isinstance(outcome, BaseException):
                future.set_exception(portable(outcome))
            else:
                future.set_result(outcome)
        except FutureDone:  # its caller is gone
            pass


def fail(calls: Sequence[Call], error: Exception) -> None:
    """Give all calls the same error; those already settled or not wanted keep what they have."""
    if calls:
        _, sinks, homes = zip(*calls, strict=True)
        settle(sinks, homes, [error] * len(calls))


def portable(error: BaseException) -> Exception:
    """An error that can be raised in the caller without stopping its thread or event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return FunctionFailed(error)


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
