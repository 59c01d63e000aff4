"""A socket for ``http.client`` that ends with a deadline, whatever the other side does."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

__all__ = ["TimedSocket", "left"]


def left(deadline: float) -> float:
    """Seconds until ``deadline`` of ``time.monotonic()``.

    Raises:
        TimeoutError: it has passed.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class TimedSocket:
    """What ``http.client`` needs of a socket, with the time of each read cut to what the whole fetch has left.

    A socket's own timeout starts anew with each byte, so that a server sending one a second would never end.
    """

    def __init__(self, raw: socket.socket, deadline: float) -> None:
        self._raw = raw
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        """A file of what arrives."""
        return io.BufferedReader(_TimedReader(self._raw, self._deadline))

    def sendall(self, data: bytes) -> None:
        """Send all of it, within the time that is left."""
        self._raw.settimeout(left(self._deadline))
        self._raw.sendall(data)

    def close(self) -> None:
        """Nothing: http.client closes it while the body is still to be read, and relies on a real socket's count."""


class _TimedReader(io.RawIOBase):
    def __init__(self, raw: socket.socket, deadline: float) -> None:
        super().__init__()
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        self._raw.settimeout(left(self._deadline))
        return self._raw.recv_into(buffer)
