"""How many requests a worker process can do in a second: by what its stages cost, and by what it was seen to do.

What it does is no measure while nothing waits: an idle worker does what it is asked for. So the cost of each stage is
taken, in full batches, times what requests have asked of it of late; of the resources (device, pool of threads, store)
the one that a request holds longest sets the pace. What that leaves out, such as cores that several threads and
processes share, is learnt while more waits than can be under way: then what it does is what it can, and the quotient of
both is kept. Where no stage has a cost (``echo``) it is what was settled, over the time in which anything was held.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Capability"]

WINDOW_S = 0.9  # shorter ones say little; figures come once a second
SATURATED = 0.9  # of a window in which more was held than can be under way
KEPT = 0.8  # of what was asked before, at each window with work in it
FOLLOW = 0.5  # of a new quotient, or of a new rate
LEAST, MOST = 0.02, 2.0  # what quotient may be believed


class Capability:
    """Of one process, from the figures that it sends: cumulative since its start.

    ``observe`` reads of them ``at`` (seconds since the start), ``settled`` requests, ``busy_s`` and
    ``full_s`` (``Ledger.times``), and ``loads``: for each stage its resource, threads, items and seconds an item.
    """

    def __init__(self) -> None:
        self._before: Mapping[str, Any] = {"at": 0.0, "settled": 0, "busy_s": 0.0, "full_s": 0.0, "loads": []}
        self._requests = 0.0
        self._items: defaultdict[int, float] = defaultdict(float)  # by stage, of so many requests
        self._quotient = 1.0  # of what it did when it had more than it could do, by what its costs say
        self._seen = 0.0
        self.rate = 0.0

    def observe(self, stats: Mapping[str, Any]) -> float:
        """Take new figures; returns requests per second, 0.0 while nothing is known."""
        before = self._before
        seconds = stats["at"] - before["at"]
        if seconds < WINDOW_S:
            return self.rate
        self._before = stats
        settled = stats["settled"] - before["settled"]
        if settled > 0:
            self._count(settled, before["loads"], stats["loads"])
            costs = self._by_costs(stats["loads"])
            full = stats["full_s"] - before["full_s"] >= SATURATED * seconds
            if costs is not None and full:
                seen = min(max(settled / seconds / costs, LEAST), MOST)
                self._quotient += FOLLOW * (seen - self._quotient)
            busy_s = stats["busy_s"] - before["busy_s"]
            if busy_s > 0:
                sample = settled / busy_s
                self._seen += (FOLLOW if self._seen else 1.0) * (sample - self._seen)
            self.rate = self._seen if costs is None else costs * self._quotient
        return self.rate

    def _count(self, settled: int, before: list[Any], now: list[Any]) -> None:
        """What these requests have asked of each stage; of what was asked long ago a little stays."""
        self._requests = self._requests * KEPT + settled
        for number, (_, _, has, _) in enumerate(now):
            had = before[number][2] if before else 0
            self._items[number] = self._items[number] * KEPT + has - had

    def _by_costs(self, loads: list[Any]) -> float | None:
        """Requests per second that the busiest resource has time for; None while no cost is known."""
        held: dict[str, float] = {}
        for number, (resource, threads, _, each_s) in enumerate(loads):
            if each_s is not None:
                part = self._items[number] * each_s / threads
                held[resource] = held.get(resource, 0.0) + part
        busiest = max(held.values(), default=0.0) / self._requests
        return 1.0 / busiest if busiest > 0 else None
