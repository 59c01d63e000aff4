"""What ``map`` keeps in its hands: how many are on their way, in which order they leave, and when to come back.

Pure: the clock is passed in. Both faces drive it.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Final

from clipfleet.producer.requests import checked
from clipfleet.schemas.errors import ErrorCode, QueueFull, RequestFailed, error_for
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.producer.requests import NewRequest

__all__ = ["Entry", "Window", "failure_of", "pause_after"]

SHORTEST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 5.0


def pause_after(retry_after: float, luck: float) -> float:
    """How long to hold back after ``queue_full``, in s; ``luck`` within 0 to 1 spreads the producers.

    ``retry_after`` is the time in which the whole backlog drains. Coming back only then would let the fleet run dry:
    places are free long before.
    """
    return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, retry_after * (0.1 + 0.2 * luck)))


def failure_of(request: NewRequest, error: RequestFailed | OSError) -> Result:
    """The result of an item that could not even be sent: a map never raises for one."""
    if isinstance(error, OSError):
        reason = f"cannot read {error.filename!r}: {error.strerror or error}"
        error = error_for(ErrorCode.FETCH_FAILED, reason, retryable=False)
    return Result(request.id or "", ok=False, error=error)


class Entry:
    """One item of a map: its request, how to cancel it while it is on its way, its result in the end."""

    __slots__ = ("cancel", "request", "result")

    def __init__(self, request: NewRequest) -> None:
        self.request = request
        self.cancel: Callable[[], None] | None = None
        self.result: Result | None = None


class Window:
    """At most ``size`` items that were taken from the source and not yet given to the caller.

    Args:
        size: the bound of memory and of requests in flight.
        ordered: give results in the order of their requests; else as they come.
    """

    def __init__(self, size: int, *, ordered: bool) -> None:
        if size < 1:
            raise ValueError(f"max_in_flight is 1 or more, not {size}")
        self._size = size
        self._ordered = ordered
        self._open: dict[Entry, None] = {}  # in order of their coming
        self._ready: deque[Entry] = deque()
        self._held: list[Entry] = []
        self._resume_at = 0.0

    def add(self, request: NewRequest) -> Entry:
        """Take in one more; the caller sends it.

        Raises:
            TypeError: it is no request: the caller's mistake, and no item's failure.
        """
        entry = Entry(checked(request))
        self._open[entry] = None
        return entry

    def ended(self, entry: Entry, result: Result, now: float) -> None:
        """A result came; a full queue is none, the item goes out again later."""
        entry.cancel = None
        if isinstance(result.error, QueueFull):
            self._held.append(entry)
            luck = random.random()  # noqa: S311 - spreads the herd
            self._resume_at = max(self._resume_at, now + pause_after(result.error.retry_after, luck))
            return
        entry.result = result
        if not self._ordered:
            del self._open[entry]
            self._ready.append(entry)
            return
        while self._open and (first := next(iter(self._open))).result is not None:
            del self._open[first]
            self._ready.append(first)

    def pop(self) -> tuple[NewRequest, Result] | None:
        """The next item that may be given to the caller."""
        if not self._ready:
            return None
        entry = self._ready.popleft()
        return entry.request, entry.result  # type: ignore[return-value]  # ready means that it has one

    def resend(self, now: float) -> list[Entry]:
        """What was refused and may try again now."""
        if not self._held or now < self._resume_at:
            return []
        held, self._held = self._held, []
        return held

    def pause_s(self, now: float) -> float | None:
        """How long until ``resend`` has something; None when nothing was refused."""
        return max(0.0, self._resume_at - now) if self._held else None

    @property
    def room(self) -> int:
        """How many more may be taken from the source; 0 while the queue is full.

        Nothing, too, until a fair part is free or nothing else is to be done: requests that come together go out in
        one call.
        """
        free = self._size - len(self._open) - len(self._ready)
        return free if not self._held and (free * 8 >= self._size or not self._ready) else 0

    @property
    def empty(self) -> bool:
        """Whether nothing is in hand."""
        return not self._open and not self._ready

    def abandon(self) -> None:
        """Cancel what is on its way: the caller has had enough."""
        for entry in self._open:
            if entry.cancel is not None:
                entry.cancel()
