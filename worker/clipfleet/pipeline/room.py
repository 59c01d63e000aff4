"""Room for rows: how many may be live in the process, whoever they belong to."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipfleet.pipeline.work import Group, Work

__all__ = ["Room"]


class Room:
    """How many rows below requests may be live in the process, and the groups that wait for room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._lock = threading.Lock()
        self._starved: deque[tuple[Work, Group]] = deque()

    def take(self, work: Work, group: Group) -> bool:
        """Make room for one row of a group; one that has none live always gets it, another waits its turn."""
        with self._lock:
            if group.live and self._used >= self._most:
                if not group.starved:
                    group.starved = True
                    self._starved.append((work, group))
                return False
            self._used += 1
            return True

    def give(self) -> tuple[Work, Group] | None:
        """A row is done; a group that may go on."""
        with self._lock:
            self._used -= 1
        return self.following()

    def following(self) -> tuple[Work, Group] | None:
        """A group that may go on, if there is room; those that have come to their end meanwhile are forgotten."""
        with self._lock:
            while self._starved and self._used < self._most:
                work, group = self._starved.popleft()
                group.starved = False
                if not work.over and group.source is not None:
                    return work, group
        return None
