"""Which call a thread is in, and whether it was given up there: whoever comes first decides, once."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.work import Task

__all__ = ["Call", "GivenUp", "Leash"]


class GivenUp(BaseException):
    """The thread's call took too long; another thread is in its place, and it must not touch anything any more."""


class Call(NamedTuple):
    """A call that has begun.

    Attributes:
        began: monotonic seconds.
        tasks: what is lost with it if it never ends.
    """

    began: float
    tasks: Sequence[Task]


class Leash:
    """One thread's; it says when a call begins and ends, and the watchdog may give it up in between.

    Without the lock a call that ends while it is being given up would be counted twice, or lost with its thread.

    Attributes:
        call: that the thread is in.
        ended: set when the thread is done, or has another one in its place.
    """

    def __init__(self) -> None:
        self.call: Call | None = None
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False

    def begin(self, tasks: Sequence[Task]) -> None:
        """A call begins now."""
        call = Call(time.monotonic(), tasks)
        with self._lock:
            self.call = call

    def end(self) -> None:
        """It has ended.

        Raises:
            GivenUp: too late.
        """
        with self._lock:
            self.call = None
            if self._given_up:
                raise GivenUp

    def give_up(self, call: Call) -> bool:
        """Take the thread for hung in ``call``; False if that has ended meanwhile."""
        with self._lock:
            if self.call is not call:
                return False
            self._given_up = True
            return True
