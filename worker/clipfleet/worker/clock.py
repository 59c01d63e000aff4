"""The server's clock, seen from here."""

from __future__ import annotations

import time

__all__ = ["ServerClock"]


class ServerClock:
    """Unix ms by the Redis server, from this machine's monotonic clock and a measured offset.

    Deadlines and ages are stated by the server's clock: a producer's or worker's own may be an hour off. The server's
    can jump too, so the offset is measured again every few seconds (by the intake, which owns this object's writes;
    a float is read and written whole by any thread).
    """

    def __init__(self) -> None:
        self._offset_ms = 0.0
        self._measured_at = float("-inf")

    @property
    def stale(self) -> bool:
        """Whether it is time to measure again."""
        return time.monotonic() - self._measured_at > 5.0

    def set(self, server_ms: float, before: float, after: float) -> None:
        """Take one measurement: the server said ``server_ms`` between two monotonic times (s)."""
        self._offset_ms = server_ms - (before + after) * 500.0
        self._measured_at = after

    def now_ms(self) -> float:
        """The server's time."""
        return time.monotonic() * 1000.0 + self._offset_ms

    def monotonic(self, server_ms: float) -> float:
        """The monotonic time (s) at which the server's clock shows that."""
        return (server_ms - self._offset_ms) / 1000.0
