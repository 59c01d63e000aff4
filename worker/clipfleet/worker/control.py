"""What a worker process and its supervisor tell each other, over one socket pair.

Messages are msgpack arrays ``[kind, ...]``, one behind the other:

======== ======================================= =====================================================
from     message                                 meaning
======== ======================================= =====================================================
parent   ``["config", map, name, ...]``          first of all: what to be
parent   ``["go"]``                              the fleet agreed: start reading
parent   ``["renewed", t, [[lane, stream id]]]`` leases renewed at monotonic ``t``; those are lost
parent   ``["idle", bool]``                      whether another worker of the queue has nothing to do
parent   ``["stop"]``                            finish what is on the device, hand the rest back, exit
child    ``["ready", map]``                      the model is loaded: fingerprint, dimension, provider
child    ``["failed", text]``                    it cannot be loaded
child    ``["held", {lane: {id: count}}, gone]`` entries that are held from now on, with their delivery counts;
                                                 and before, ``{lane: [id]}``, those that are no longer
child    ``["call", t]``                         a model call began at monotonic ``t`` (s); nil = it ended
child    ``["stats", map]``                      for presence and metrics
======== ======================================= =====================================================
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from typing import Any, Final

import msgpack

__all__ = ["CANNOT_START", "Channel"]

CANNOT_START = 78  # EX_CONFIG: the child's exit code when it cannot be loaded, so that it is not tried again
READ_BYTES: Final = 1 << 16


class Channel:
    """One end of the socket pair; any thread sends, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()
        self._unpacker = msgpack.Unpacker()
        self._messages: deque[list[Any]] = deque()
        self._readable = select.poll()
        self._readable.register(end, select.POLLIN)

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def send(self, *message: Any) -> None:
        """Send one message; blocks when the other end is stopped, which is meant: then nobody renews our leases.

        Raises:
            OSError: the other end is gone.
        """
        packed = msgpack.packb(message)
        with self._lock:
            self._socket.sendall(packed)

    def receive(self) -> list[Any]:
        """The next message; blocks.

        Raises:
            EOFError: the other end is gone.
            OSError: likewise, with something unread.
        """
        while not self._messages:
            self._feed(self._socket.recv(READ_BYTES))
        return self._messages.popleft()

    def arrived(self) -> list[list[Any]]:
        """Whatever messages are there whole; never blocks, also if the other end was stopped in the midst of one.

        Raises:
            EOFError: there are none, and the other end is gone.
            OSError: likewise.
        """
        try:
            while True:
                self._feed(self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except (EOFError, OSError):
            if not self._messages:
                raise
        found = list(self._messages)
        self._messages.clear()
        return found

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether there is something to be received (or the end) within ``timeout_s``."""
        return bool(self._messages) or bool(self._readable.poll(timeout_s * 1000.0))

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _feed(self, data: bytes) -> None:
        if not data:
            raise EOFError
        self._unpacker.feed(data)
        self._messages.extend(self._unpacker)
