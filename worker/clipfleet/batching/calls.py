"""Inside `@batched`: who waits for an output, and how it is given to them."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from clipfleet.batching.errors import FunctionFailed, WrongCount

if TYPE_CHECKING:
    from collections.abc import Sequence

# An input with who waits for it: an `asyncio.Future` and its loop, or a `Slot` or `Job` and None. A bare tuple, as
# one is made for each call.
Call: TypeAlias = tuple[Any, Any, AbstractEventLoop | None]


class Slot:
    """Where a blocked thread gets its outcome: one bare lock, much cheaper than a `Future`."""

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
        seconds = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not self._ready.acquire(timeout=seconds):
            self._abandoned = True
            raise TimeoutError(f"no output within {timeout} s")
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class Job(Future[Any]):
    """A `Future` with a slot's two verbs."""

    def claim(self) -> bool:
        """Whether it was not cancelled; from here on it cannot be."""
        return self.set_running_or_notify_cancel()

    def settle(self, outcome: Any) -> None:
        """Give it its outcome, unless it was cancelled or has one."""
        with suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)


def claimed(calls: Sequence[Call]) -> list[Call]:
    """The calls for which somebody still waits."""
    return [call for call in calls if (call[1].claim() if call[2] is None else not call[1].cancelled())]


def settle(calls: Sequence[Call], outcomes: list[Any]) -> None:
    """Give each call its outcome; one wake-up for each event loop, not for each call."""
    while calls:
        loop = calls[0][2]
        others = [place for place, call in enumerate(calls) if call[2] is not loop]
        mine, theirs = calls, outcomes
        if others:
            places = [place for place, call in enumerate(calls) if call[2] is loop]
            mine, theirs = [calls[place] for place in places], [outcomes[place] for place in places]
        if loop is None:
            for (_, sink, _), outcome in zip(mine, theirs, strict=True):
                sink.settle(portable(outcome) if isinstance(outcome, BaseException) else outcome)
        else:
            # A closed loop: those who waited in it are gone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle_futures, mine, theirs)
        calls, outcomes = [calls[place] for place in others], [outcomes[place] for place in others]


def settle_futures(calls: Sequence[Call], outcomes: list[Any]) -> None:
    """In the loop's own thread: give each future that is still wanted its outcome."""
    for (_, future, _), outcome in zip(calls, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(portable(outcome))
        else:
            future.set_result(outcome)


def fail(calls: Sequence[Call], error: Exception) -> None:
    """Give all calls the same error; those already settled or not wanted keep what they have."""
    settle(calls, [error] * len(calls))


def portable(error: BaseException) -> Exception:
    """An error that can be raised in the caller without stopping its thread or event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return FunctionFailed(error)


def outcomes_of(outputs: Any, count: int) -> list[Any]:
    """The function's outputs as a list of `count` outcomes; all the same error if they cannot be matched."""
    if isinstance(outputs, list) and len(outputs) == count:
        return outputs.copy()  # the function may use its list again before the loop has read it
    # What is iterable but has no order, or whose elements are no outputs, would be matched wrongly in silence.
    if isinstance(outputs, str | bytes | Mapping | AbstractSet) or not isinstance(outputs, Iterable):
        wrong = TypeError(f"the function must return a sequence of outputs, not {type(outputs).__name__}")
        return [wrong] * count
    listed = list(islice(outputs, count + 1))
    if len(listed) == count:
        return listed
    some = str(len(listed)) if len(listed) < count else f"more than {count}"
    return [WrongCount(count, some)] * count
