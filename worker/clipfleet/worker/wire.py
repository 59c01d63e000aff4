"""One connection to Redis, owned by one thread: plain commands, scripts by their hash, many in one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hiredis
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError, ResponseError

from clipfleet.schemas import scripts
from clipfleet.worker.connection import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Call", "Wire"]

Command = tuple[Any, ...]
# What must leave within the connection's timeout. A whole batch of large results would not, on a slow link: it would be
# sent again and again, and nothing behind it.
SLICE_BYTES = 1 << 20
Call = tuple[str, "Sequence[str]", "Sequence[Any]"]


class Wire:
    """A connection that reconnects when it is used again after a failure.

    Errors of the server come back as values in ``batch`` and ``call_many`` and are raised by the rest. A lost
    connection raises one of ``clipfleet.worker.connection.LOST``; whether to send again is the caller's decision.

    A node of a Redis Cluster that does not hold the queue's slot answers MOVED with the name of the one that does: that
    one is asked from then on, until it is lost; then whoever the URL names is asked again.
    """

    def __init__(self, url: str, *, timeout_s: float = 3.0) -> None:
        self._pool = connect(url, timeout_s=timeout_s).connection_pool
        self._connection: Any = None
        self._named: tuple[Any, Any] = (None, None)

    def batch(self, commands: Sequence[Command]) -> list[Any]:
        """Send all, read all; a reply that is an error is returned as the exception."""
        connection = self._connection
        try:
            if connection is None:
                connection = self._connection = self._pool.get_connection()
                self._named = (getattr(connection, "host", None), getattr(connection, "port", None))
            # Packed here: redis-py's own way looks at each argument in Python, and these are a thousand a batch.
            connection.send_packed_command(_slices(b"".join(map(hiredis.pack_command, commands))))
            replies = [_reply(connection) for _ in commands]
        except BaseException:
            # Whatever is still on its way belongs to these commands, and must not be read as the next one's reply.
            if connection is not None:
                self._point(*self._named)
            raise
        for reply in replies:
            if isinstance(reply, MovedError):
                self._point(reply.host or self._named[0], reply.port)
        return replies

    def _point(self, host: Any, port: Any) -> None:
        """Connect there at the next command."""
        self._connection.disconnect()
        self._connection.host, self._connection.port = host, port

    def command(self, *command: Any) -> Any:
        """Send one command and return its reply.

        Raises:
            ResponseError: the server refused it.
        """
        return _raised(self.batch([command])[0])

    def call(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run one of the protocol's scripts.

        Raises:
            ResponseError: the script or the server refused it.
        """
        return _raised(self.call_many([(name, keys, args)])[0])

    def call_many(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip, each atomic by itself; errors are returned."""
        commands = [("EVALSHA", scripts.load(name).sha, len(keys), *keys, *args) for name, keys, args in calls]
        replies = self.batch(commands)
        # A restarted or flushed server has forgotten the scripts; those calls had no effect and are sent again.
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            self._load({calls[i][0] for i in unknown})
            for i, reply in zip(unknown, self.batch([commands[i] for i in unknown]), strict=True):
                replies[i] = reply
        for reply in replies:
            if isinstance(reply, ReadOnlyError):
                raise reply
        return replies

    def close(self) -> None:
        """Close the connection."""
        self._connection = None
        self._pool.disconnect()

    def _load(self, names: Iterable[str]) -> None:
        for name in names:
            self.command("SCRIPT", "LOAD", scripts.load(name).text)


def _slices(data: bytes) -> Sequence[bytes | memoryview]:
    """``data`` as it is sent, each with its own time."""
    if len(data) <= SLICE_BYTES:
        return (data,)
    view = memoryview(data)
    return [view[start : start + SLICE_BYTES] for start in range(0, len(data), SLICE_BYTES)]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _raised(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
