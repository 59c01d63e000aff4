"""What a worker process and its supervisor tell each other, over one socket pair.

Messages are msgpack arrays ``[kind, ...]``:

======== ======================================= =====================================================
from     message                                 meaning
======== ======================================= =====================================================
parent   ``["config", map, name, ...]``          first of all: what to be
parent   ``["go"]``                              the fleet agreed: start reading
parent   ``["renewed", t, [stream id]]``         leases renewed at monotonic ``t``; those ids are lost
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

import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    import socket

__all__ = ["CANNOT_START", "Channel"]

CANNOT_START = 78  # EX_CONFIG: the child's exit code when it cannot be loaded, so that it is not tried again


class Channel:
    """One end of the socket pair; any thread sends, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._connection = Connection(end.detach())
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For a selector."""
        return self._connection.fileno()

    def send(self, *message: Any) -> None:
        """Send one message; blocks when the other end is stopped, which is meant: then nobody renews our leases.

        Raises:
            OSError: the other end is gone.
        """
        packed = msgpack.packb(message)
        with self._lock:
            self._connection.send_bytes(packed)

    def receive(self) -> list[Any]:
        """The next message; blocks.

        Raises:
            EOFError: the other end is gone.
        """
        message: list[Any] = msgpack.unpackb(self._connection.recv_bytes())
        return message

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether a message (or the end) is there to be received within ``timeout_s``."""
        return self._connection.poll(timeout_s)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
