"""What ``map`` keeps in its hands: how many are on their way, in which order they leave, and when to come back.

Pure: the clock is passed in. Both faces drive it.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final, Protocol

from clipfleet.producer.requests import NewRequest, checked
from clipfleet.schemas.errors import ErrorCode, QueueFull, RequestFailed, error_for
from clipfleet.schemas.result import Result

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


class Cancellable(Protocol):
    """A job, as far as a map knows it."""

    def cancel(self) -> None:
        """End it."""


class Entry:
    """One item of a map: its request, its job while it is on its way, its result in the end."""

    __slots__ = ("job", "request", "result")

    def __init__(self, request: NewRequest) -> None:
        self.request = request
        self.job: Cancellable | None = None
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
        self._group = max(1, size // 8)
        self._free = size
        self._open: set[Entry] = set()
        self._line: deque[Entry] | None = deque() if ordered else None  # in order of their coming, open or not
        self._ready: deque[Entry] = deque()
        self._held: list[Entry] = []
        self._resume_at = 0.0

    def add(self, request: NewRequest) -> Entry:
        """Take in one more; the caller sends it.

        Raises:
            TypeError: it is no request: the caller's mistake, and no item's failure.
        """
        entry = Entry(request if type(request) is NewRequest else checked(request))
        self._open.add(entry)
        if self._line is not None:
            self._line.append(entry)
        self._free -= 1
        return entry

    def ended(self, entry: Entry, result: Result, now: float) -> None:
        """A result came; a full queue is none, the item goes out again later."""
        entry.job = None
        if result.error is not None and isinstance(result.error, QueueFull):
            self._held.append(entry)
            luck = random.random()  # noqa: S311 - spreads the herd
            self._resume_at = max(self._resume_at, now + pause_after(result.error.retry_after, luck))
            return
        entry.result = result
        self._open.discard(entry)
        if self._line is None:
            self._ready.append(entry)
            return
        while self._line and self._line[0].result is not None:
            self._ready.append(self._line.popleft())

    def take(self) -> list[tuple[NewRequest, Result]]:
        """The next items that may be given to the caller; no more than what is worth a call, so that others follow."""
        ready = self._ready
        count = min(len(ready), self._group)
        self._free += count
        entries = [ready.popleft() for _ in range(count)]
        return [(entry.request, entry.result) for entry in entries]  # type: ignore[misc]  # ready: each has one

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
        return self._free if not self._held and (self._free >= self._group or not self._ready) else 0

    @property
    def empty(self) -> bool:
        """Whether nothing is in hand."""
        return self._free == self._size

    def abandon(self) -> None:
        """Cancel what is on its way: the caller has had enough."""
        for entry in self._open:
            if entry.job is not None:
                entry.job.cancel()
