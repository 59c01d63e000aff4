"""What a worker process tells its supervisor while it works."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipfleet.worker.control import Channel
    from clipfleet.worker.entry import Entry

__all__ = ["Reporter"]


class Reporter:
    """Sends held entries and model calls; when nobody is there to hear, the process ends.

    Without a supervisor no lease is renewed and nobody would stop this process: work done now would be done twice.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def holding(self, added: list[Entry], removed: list[Entry]) -> None:
        """Entries that are held from now on, and those that are no longer."""
        if added:
            held: dict[str, list[tuple[str, int]]] = {}
            for entry in added:
                held.setdefault(entry.lane, []).append((entry.stream_id, entry.deliveries))
            self._send("held", held)
        if removed:
            gone: dict[str, list[str]] = {}
            for entry in removed:
                gone.setdefault(entry.lane, []).append(entry.stream_id)
            self._send("gone", gone)

    def calling(self, begins: bool) -> None:  # noqa: FBT001  (begins or ends; the context's one callback)
        """A model call begins or has ended."""
        self._send("call", time.monotonic() if begins else None)

    def _send(self, *message: object) -> None:
        try:
            self._channel.send(*message)
        except OSError:
            os._exit(1)
