"""Inside the batch rule: the lanes, and the items of one of them in order of arrival."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Lane(StrEnum):
    """Whose items go first."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class Taken(NamedTuple, Generic[T]):
    """Items of one batch and, in the same order, when each was enqueued."""

    items: list[T]
    enqueued_at: list[float]


class Line(Generic[T]):
    """One lane in order of arrival, with the smallest `enqueued_at` at hand.

    Decode finishes out of order, so the oldest need not be the first. `minima` is the usual sliding-window minimum:
    the values smaller than all that arrived after them, each with its serial number, in order; O(1) per item.
    """

    __slots__ = ("_pulled", "_pushed", "barriers", "items", "minima", "times")

    def __init__(self) -> None:
        # Side by side and not as tuples: many items of one age are then added and removed without a loop.
        self.items: deque[T] = deque()
        self.times: deque[float] = deque()
        self.barriers: deque[int] = deque()
        self.minima: deque[tuple[float, int]] = deque()
        self._pushed = self._pulled = 0

    @property
    def oldest_at(self) -> float:
        """The smallest `enqueued_at`; infinity when there is nothing."""
        return self.minima[0][0] if self.minima else inf

    def push(self, item: T, enqueued_at: float, barrier: int) -> None:
        """One item at the end."""
        self.items.append(item)
        self.times.append(enqueued_at)
        self.barriers.append(barrier)
        self._note(1, enqueued_at)

    def push_all(self, items: Sequence[T], enqueued_at: float, barrier: int) -> None:
        """Several items of one age at the end."""
        self.items.extend(items)
        self.times.extend(repeat(enqueued_at, len(items)))
        self.barriers.extend(repeat(barrier, len(items)))
        self._note(len(items), enqueued_at)

    def _note(self, count: int, enqueued_at: float) -> None:
        self._pushed += count
        minima = self.minima
        while minima and minima[-1][0] >= enqueued_at:
            minima.pop()
        minima.append((enqueued_at, self._pushed - 1))

    def pull(self, count: int) -> Taken[T]:
        """Remove and return the first `count` items."""
        items, times, barriers = self.items, self.times, self.barriers
        self._pulled += count
        if count == len(items):
            taken = Taken(list(items), list(times))
            for column in (items, times, barriers, self.minima):
                column.clear()
            return taken
        for _ in range(count):
            barriers.popleft()
        while self.minima[0][1] < self._pulled:
            self.minima.popleft()
        return Taken([items.popleft() for _ in range(count)], [times.popleft() for _ in range(count)])
