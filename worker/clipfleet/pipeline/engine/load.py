"""What the steps of a process cost, and how much of each there was: for whoever has to say what it can do."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Load", "MeanCost"]

FORGET = 0.99  # weight of the past at each new item: about the last 100 count
SETTLED, OUTLIER = 10, 4.0  # after so many items one counts as so many times the mean at the most


@dataclass(frozen=True, slots=True)
class Load:
    """One stage.

    Attributes:
        resource: what it occupies: a device, a store, or the threads of a pool.
        threads: how many of its items, or of its batches, may be under way at a time.
        items: so many since the start.
        each_s: seconds of one thread for one item, in full batches; None: not known yet.
    """

    resource: str
    threads: int
    items: int
    each_s: float | None


class MeanCost:
    """Seconds that one item takes where items are taken one by one: a mean of the last ones, told by any thread."""

    __slots__ = ("_lock", "each_s", "items")

    def __init__(self) -> None:
        self.items = 0
        self.each_s: float | None = None
        self._lock = threading.Lock()

    def observe(self, items: int, seconds: float) -> None:
        """So many items took so long together."""
        if items < 1:
            return
        with self._lock:
            self.items += items
            sample = seconds / items
            if self.each_s is None:
                self.each_s = sample
                return
            if self.items > SETTLED:  # a page-in, or one address that hung, says nothing of the others
                sample = min(sample, OUTLIER * self.each_s)
            self.each_s += (1 - FORGET**items) * (sample - self.each_s)
