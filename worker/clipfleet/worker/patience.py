"""Waiting for a server that is away: longer each time, and a line in the log when it goes and when it is back."""

from __future__ import annotations

import logging
import random
import threading
import time

__all__ = ["Patience"]

log = logging.getLogger(__name__)
FIRST_S, MOST_S = 0.05, 2.0
SAY_EVERY_S = 10.0


class Patience:
    """Backoff for one loop that talks to one server.

    Trouble that comes and goes many times a second is told of once in 10 s, with how often it came: a log must not
    grow with what somebody else does to Redis. While it lasts, an error of another kind is told of once: a connection
    that was closed is not the reason if the next one is refused for its password.

    Args:
        doing: what the loop does, for the log.
        stop: cuts the waiting short.
    """

    def __init__(self, doing: str, stop: threading.Event | None = None) -> None:
        self._doing = doing
        self._stop = stop or threading.Event()
        self._failures = 0
        self._since = 0.0
        self._say_at = 0.0
        self._said: set[type[Exception]] = set()  # kinds of errors that were told of since it was well
        self._untold = 0

    def trouble(self, error: Exception) -> None:
        """Something failed: wait before the next attempt, exponentially and with jitter up to 2 s."""
        now = time.monotonic()
        if self._failures == 0:
            self._since = now
            self._untold += 1
        self._failures += 1
        if type(error) not in self._said if self._said else now >= self._say_at:
            often = f" ({self._untold} times)" if self._untold > 1 else ""
            log.warning("%s: %s: %s%s", self._doing, type(error).__name__, error, often)
            self._said.add(type(error))
            self._say_at, self._untold = now + SAY_EVERY_S, 0
        ceiling = min(MOST_S, FIRST_S * 2.0 ** min(self._failures, 10))
        self._stop.wait(ceiling * (0.5 + random.random() / 2))  # noqa: S311  (spreads load, hides nothing)

    def fine(self) -> None:
        """It works (again)."""
        if self._said:
            log.warning("%s: well again after %.1f s", self._doing, time.monotonic() - self._since)
        self._said.clear()
        self._failures = 0
