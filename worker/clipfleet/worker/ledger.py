"""What this process holds: one book for the leases, the room to read more, and the stopping of it all."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clipfleet.worker.entry import Entry

__all__ = ["Ledger"]

LANE_OF: Final = itemgetter(0)  # of a place


class Ledger:
    """The entries that are held, from reading until they are settled, lost or handed back.

    An entry is *active* while it is decoded, batched or run; one that waits for the store is held but takes no room,
    so that an unreachable Milvus does not stop embeddings.

    Args:
        lease_s: how long an entry is ours without a renewal.
        report: told of every change, ``(added, removed)``, before it takes effect for added ones: the supervisor
            renews what was reported, and must know of an entry before it is worked on.

    Attributes:
        full: so many active entries are as many as can be under way at a time, of what is read at present.
    """

    def __init__(self, lease_s: float, report: Callable[[list[Entry], list[Entry]], None]) -> None:
        self._lease_s = lease_s
        self.full = sys.maxsize
        self._busy_s = self._full_s = 0.0
        self._booked_at = time.monotonic()
        self._report = report
        self._held: dict[tuple[str, str], Entry] = {}
        self._stored: set[tuple[str, str]] = set()
        self._active: Counter[str] = Counter()  # by lane
        self._changed = threading.Condition()
        self._wanted = 0
        self._renewed_at = float("-inf")

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, place: tuple[str, str]) -> bool:
        return place in self._held

    @property
    def active(self) -> int:
        """Entries that take room: held, and not with the store."""
        return len(self._held) - len(self._stored)

    def active_in(self, lane: str) -> int:
        """Those of one lane."""
        return self._active[lane]

    @property
    def stored(self) -> int:
        """Entries that wait for the store."""
        return len(self._stored)

    def times(self) -> tuple[float, float]:
        """Seconds since the start in which anything was active, and in which more was than can be under way."""
        with self._changed:
            self._book()
            return self._busy_s, self._full_s

    def add(self, entries: list[Entry]) -> None:
        """Hold entries."""
        self._report(entries, [])
        with self._changed:
            self._book()
            new = {entry.place: entry for entry in entries}
            self._active.update(map(LANE_OF, new.keys() - self._held.keys()))
            self._held.update(new)

    def to_store(self, entries: Iterable[Entry]) -> None:
        """These wait for the store from now on."""
        with self._changed:
            self._book()
            going = [one for one in entries if one.place in self._held and one.place not in self._stored]
            self._stored.update(entry.place for entry in going)
            self._rest(entry.place for entry in going)
            self._wake()

    def remove(self, entries: Iterable[Entry]) -> None:
        """Hold them no longer: settled, lost or handed back."""
        with self._changed:
            self._book()
            held, stored = self._held, self._stored
            gone = [entry for entry in entries if held.pop(entry.place, None) is not None]
            places = {entry.place for entry in gone}
            self._rest(places - stored)
            stored -= places
            self._wake()
        self._report([], gone)

    def forget(self, places: Iterable[tuple[str, str]], asked_at: float = math.inf) -> None:
        """These were reclaimed by another worker or settled by one, as Redis said after ``asked_at`` (monotonic, s).

        What was read since then is ours: it was handed back, which the supervisor had not heard of when it asked, and
        taken again.
        """
        with self._changed:
            entries = [self._held[one] for one in places if one in self._held]
        self.remove([entry for entry in entries if entry.read_at <= asked_at])

    def held(self) -> list[Entry]:
        """Everything held, oldest first."""
        with self._changed:
            return list(self._held.values())

    def wait_active(self, most: int, timeout_s: float) -> bool:
        """Block until at most ``most`` entries are active; False after ``timeout_s``."""
        return self.wait_until(lambda: self.active <= most, timeout_s)

    def wait_until(self, fits: Callable[[], bool], timeout_s: float) -> bool:
        """Block until ``fits``, of what is active, holds, looking whenever something leaves; False after that time."""
        with self._changed:
            self._wanted += 1
            try:
                return self._changed.wait_for(fits, timeout_s)
            finally:
                self._wanted -= 1

    def wake(self) -> None:
        """Let everybody who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def renewed(self, at: float) -> None:
        """All that was held at ``at`` (monotonic, s) and is still in the book had its lease renewed then."""
        self._renewed_at = max(self._renewed_at, at)

    def stale(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those whose lease may have run out: this process, its supervisor or Redis was away for a while.

        They must be asked about (``renew.lua`` tells the owner) before the device or the store is used for them.
        """
        oldest = time.monotonic() - 0.8 * self._lease_s
        if self._renewed_at > oldest:
            return []
        return [entry for entry in entries if entry.read_at < oldest]

    def _book(self) -> None:
        """Book the time since the last change; before the next one."""
        now = time.monotonic()
        since, self._booked_at = now - self._booked_at, now
        if self.active:
            self._busy_s += since
            if self.active >= self.full:
                self._full_s += since

    def _rest(self, places: Iterable[tuple[str, str]]) -> None:
        """These are active no longer."""
        for lane, count in Counter(map(LANE_OF, places)).items():
            self._active[lane] -= count

    def _wake(self) -> None:
        if self._wanted:
            self._changed.notify_all()
