"""Waiting for a server that is away: longer each time, and one line in the log when it goes and when it is back."""

from __future__ import annotations

import logging
import random
import threading
import time

__all__ = ["Patience"]

log = logging.getLogger(__name__)
FIRST_S, MOST_S = 0.05, 2.0


class Patience:
    """Backoff for one loop that talks to one server.

    Args:
        doing: what the loop does, for the log.
        stop: cuts the waiting short.
    """

    def __init__(self, doing: str, stop: threading.Event | None = None) -> None:
        self._doing = doing
        self._stop = stop or threading.Event()
        self._failures = 0
        self._since = 0.0

    def trouble(self, error: Exception) -> None:
        """Something failed: wait before the next attempt, exponentially and with jitter up to 2 s."""
        if self._failures == 0:
            self._since = time.monotonic()
            log.warning("%s: %s: %s", self._doing, type(error).__name__, error)
        self._failures += 1
        ceiling = min(MOST_S, FIRST_S * 2.0 ** min(self._failures, 10))
        self._stop.wait(ceiling * (0.5 + random.random() / 2))  # noqa: S311  (spreads load, hides nothing)

    def fine(self) -> None:
        """It works (again)."""
        if self._failures:
            log.warning("%s: well again after %.1f s", self._doing, time.monotonic() - self._since)
            self._failures = 0
