"""What a worker process tells its supervisor while it works."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipfleet.worker.control import Channel
    from clipfleet.worker.entry import Entry

__all__ = ["Reporter"]

MOST_GONE = 256  # entries that are held no longer and not told of yet


class Reporter:
    """Sends held entries and model calls; when nobody is there to hear, the process ends.

    Without a supervisor no lease is renewed and nobody would stop this process: work done now would be done twice.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._gone: list[Entry] = []
        self._calls: dict[object, float] = {}  # when each began that runs, the oldest first
        # Held while sending, too: what was let go of and came back must be told in that order.
        self._lock = threading.Lock()

    def holding(self, added: list[Entry], removed: list[Entry]) -> None:
        """Entries that are held from now on, and those that are no longer.

        The former are told at once, since their leases are renewed from then on; the latter with the next ones or by
        ``flush``: that one more renewal asks for them does no harm, and waking the supervisor twice a batch costs it
        and us more than all the rest of it.
        """
        with self._lock:
            self._gone += removed
            if added or len(self._gone) >= MOST_GONE:
                self._tell(added)

    def flush(self) -> None:
        """Tell what is held no longer."""
        with self._lock:
            if self._gone:
                self._tell([])

    def _tell(self, added: list[Entry]) -> None:
        gone: dict[str, list[str]] = {}
        for entry in self._gone:
            gone.setdefault(entry.lane, []).append(entry.stream_id)
        self._gone = []
        held: dict[str, list[str]] = {}
        for entry in added:
            held.setdefault(entry.lane, []).append(entry.stream_id)
        self._send("held", held, gone)

    def calling(self, who: object, begins: bool) -> None:  # noqa: FBT001  (begins or ends; the context's one callback)
        """A model call of this one begins or has ended. Of those that run, the one that began first is told of."""
        with self._lock:
            before = next(iter(self._calls.items()), None)
            if begins:
                self._calls[who] = time.monotonic()
            else:
                self._calls.pop(who, None)
            oldest = next(iter(self._calls.items()), None)
            if oldest != before:
                self._send("call", oldest and oldest[1])

    def _send(self, *message: object) -> None:
        try:
            self._channel.send(*message)
        except OSError:
            os._exit(1)
