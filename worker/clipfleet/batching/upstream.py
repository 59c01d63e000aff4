"""Inside the batch rule: who is on the way to a stage, and how often one arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.batching.line import Lane

if TYPE_CHECKING:
    from collections.abc import Iterable

GAP_WEIGHT = 0.1  # of a new sample in the moving average of the time between two arrivals from upstream


class Upstream:
    """The announced items of one stage, by ticket, in the order in which they were announced."""

    __slots__ = (
        "_all",
        "_gap_from",
        "_interactive",
        "_lowest",
        "_lowest_interactive",
        "gap_s",
        "left_at",
        "next_ticket",
    )

    def __init__(self) -> None:
        self._all: set[int] = set()
        self._interactive: set[int] = set()
        self._lowest = self._lowest_interactive = 0  # none below it is upstream any more
        self._gap_from = 0.0
        self.next_ticket = 0
        self.gap_s: float | None = None
        self.left_at = float("-inf")  # when the last announced item left

    def __len__(self) -> int:
        return len(self._all)

    @property
    def interactive(self) -> int:
        """How many of them are interactive."""
        return len(self._interactive)

    def announce(self, n: int, now: float, lane: Lane) -> range:
        """`n` items are on their way; one ticket for each."""
        if not self._all:
            self._gap_from = now
        tickets = range(self.next_ticket, self.next_ticket + n)
        self.next_ticket = tickets.stop
        self._all.update(tickets)
        if lane is Lane.INTERACTIVE:
            self._interactive.update(tickets)
        return tickets

    def leave(self, tickets: Iterable[int], now: float, most_gap_s: float) -> set[int]:
        """These arrived, or will not come; those of them that were still on their way."""
        left = self._all.intersection(tickets)
        if left:
            self._all -= left
            self._interactive -= left
            # Cut off, so that one item that hung for a minute does not switch the wait off for the next fifty.
            sample = min(max(0.0, now - self._gap_from), most_gap_s) / len(left)
            weight = 1 - (1 - GAP_WEIGHT) ** len(left)
            self.gap_s = sample if self.gap_s is None else self.gap_s + weight * (sample - self.gap_s)
            self._gap_from = self.left_at = now
        return left

    def any_below(self, barrier: int) -> bool:
        """Whether one with a ticket below `barrier` is on its way."""
        while self._lowest < barrier and self._lowest not in self._all:
            self._lowest += 1
        return self._lowest < barrier

    def interactive_below(self, barrier: int) -> bool:
        """The same of interactive items alone."""
        while self._lowest_interactive < barrier and self._lowest_interactive not in self._interactive:
            self._lowest_interactive += 1
        return self._lowest_interactive < barrier
