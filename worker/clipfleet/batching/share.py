"""Inside the batch rule: how the places of one batch are divided between the lanes."""

from __future__ import annotations


class BulkShare:
    """Of each `share` places one is bulk's while it has work; what a batch is too small for is saved up.

    Args:
        share: 1 or more.
    """

    __slots__ = ("_credit", "_share")

    def __init__(self, share: int) -> None:
        self._share = share
        self._credit = 0  # bulk's, in 1 / share of a place

    def split(self, interactive: int, bulk: int, size: int, free: int) -> tuple[int, int]:
        """How many interactive and how many bulk items the next batch holds.

        Args:
            interactive: items that wait there.
            bulk: items that wait there.
            size: places of the batch.
            free: places that bulk may have beyond its share, if interactive items leave them.
        """
        if not bulk:
            self._credit = 0
            return min(interactive, size), 0
        places = min(interactive, size)
        owed = self._owed(places, size, bulk)
        if places + owed > size:
            owed = min(bulk, (self._credit + size) // self._share)
            places = size - owed
        given = min(bulk, size - places, max(owed, free))
        self._credit = 0 if given == bulk else max(0, self._credit + places - (self._share - 1) * given)
        return places, given

    def _owed(self, places: int, size: int, bulk: int) -> int:
        """Bulk's share of a batch that holds `places` interactive items besides it."""
        return min(bulk, size if self._share == 1 else (self._credit + places) // (self._share - 1))
