"""One connection to Redis: commands out in order, answers back in order, and the end of it."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import hiredis

from clipfleet.producer.core.command import Command, Reply, nothing
from clipfleet.producer.core.trouble import LinkBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.producer.connection.address import Address

__all__ = ["Wire", "connect"]

CLIENT_NAME: Final = "clipfleet-producer"


class Wire(asyncio.Protocol):
    """A connection that is up, or was.

    Args:
        after: called when answers were handled and the connection is still good.
        ended: called once when the connection is over, with the reason.
    """

    def __init__(self, after: Callable[[], None], ended: Callable[[LinkBroken], None]) -> None:
        self._after = after
        self._ended = ended
        self._reader = hiredis.Reader()
        self._expected: deque[Command] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._broken: LinkBroken | None = None
        self._unsent = 0
        self.last_used = self._loop.time()

    @property
    def alive(self) -> bool:
        """Whether something may still be sent."""
        return self._broken is None

    @property
    def waiting_since(self) -> float:
        """Since when an answer is due and nothing came; infinity when none is."""
        return self.last_used if self._expected else math.inf

    def overdue(self, now: float, within_s: float) -> bool:
        """Whether an answer is due for ``within_s`` already; not while bytes still leave: a large request takes time.

        Given up on a slow line, it would go out again from its start, for ever, and all others behind it.
        """
        if self._transport is None or now < self.waiting_since + within_s:
            return False
        unsent, before = self._transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if unsent < before:
            self.last_used = now
            return False
        return True

    def send(self, commands: list[Command]) -> None:
        """All in one write."""
        if not commands or self._transport is None:
            return
        if not self._expected:
            self.last_used = self._loop.time()
        self._expected.extend(commands)
        # The stub says a tuple of one; it takes any.
        packed = [hiredis.pack_command(command.args) for command in commands]  # type: ignore[arg-type]
        self._transport.write(b"".join(packed))
        self._unsent = self._transport.get_write_buffer_size()

    def stop(self, reason: LinkBroken) -> None:
        """End it now, whatever is under way."""
        if self._broken is None:
            self._broken = reason
            if self._transport is not None:
                self._transport.abort()  # connection_lost follows

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # No isinstance: uvloop's transports only look like asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._broken is not None:
            return
        now = self.last_used = self._loop.time()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._answer(reply, now)
        except LinkBroken as broken:
            self.stop(broken)
        except hiredis.ProtocolError as error:
            self.stop(LinkBroken(f"this is no Redis: {error}"))
        else:
            self._after()

    def _answer(self, reply: Reply, now: float) -> None:
        if not self._expected:
            raise LinkBroken(f"an answer to no question: {reply}")
        command = self._expected.popleft()
        try:
            command.reply(reply, now)
        except LinkBroken:
            command.lost(now)
            raise
        except Exception as error:
            # An answer of no known shape must not leave its command open for ever.
            command.lost(now)
            raise LinkBroken(
                f"{command.args[0]!r} was answered by {reply!r:.200}: {error!r}", by_answer=True
            ) from error

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        now = self._loop.time()
        if self._broken is None:
            self._broken = LinkBroken(f"connection lost: {exc}" if exc else "the server closed the connection")
        while self._expected:
            self._expected.popleft().lost(now)
        self._ended(self._broken)


async def connect(
    address: Address, timeout_s: float, after: Callable[[], None], ended: Callable[[LinkBroken], None]
) -> Wire:
    """A connection that is authenticated and has its database selected.

    ``ended`` is called for a connection that comes to its end after this has returned.

    Raises:
        LinkBroken: it could not be had; ``refused`` when asking again cannot help.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _connect(address, after, ended)
    except TimeoutError:
        raise LinkBroken(f"{address} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        nobody = _nobody_listens(error)
        raise LinkBroken(f"{address}: {'connection refused' if nobody else error}", nobody=nobody) from None


def _nobody_listens(error: OSError) -> bool:
    """Whether the machine itself answered that there is no server.

    A name with several addresses, as ``localhost`` is, ends in an OSError with no number and all their texts.
    """
    refused = (errno.ECONNREFUSED, errno.ENOENT) if error.errno is not None else ()
    return error.errno in refused or (error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error))


async def _connect(address: Address, after: Callable[[], None], ended: Callable[[LinkBroken], None]) -> Wire:
    loop = asyncio.get_running_loop()
    greeted: asyncio.Future[None] = loop.create_future()
    usable = False

    def over(reason: LinkBroken) -> None:
        if usable:
            ended(reason)
        elif not greeted.done():
            greeted.set_exception(reason)

    wire = Wire(lambda: after() if usable else None, over)
    try:
        if address.path:
            await loop.create_unix_connection(lambda: wire, address.path)
        else:
            await loop.create_connection(lambda: wire, address.host, address.port, ssl=address.tls)
        wire.send(_greeting(address, greeted))
        await greeted
    except BaseException:
        greeted.cancel()  # nobody will ask it how the connection ended
        wire.stop(LinkBroken("given up before it was ready"))
        raise
    usable = True
    return wire


def _greeting(address: Address, greeted: asyncio.Future[None]) -> list[Command]:
    def checked(reply: Reply, _now: float) -> None:
        # LOADING ends by itself; a wrong password or database does not.
        if isinstance(reply, Exception):
            raise LinkBroken(str(reply), refused=not str(reply).startswith(("LOADING", "MASTERDOWN", "BUSY")))

    def done(_reply: Reply, _now: float) -> None:
        if not greeted.done():
            greeted.set_result(None)

    commands: list[Command] = []
    if address.password or address.username:
        words: tuple[Any, ...] = ("AUTH", address.username, address.password)
        commands.append(Command(words if address.username else (words[0], words[2]), checked, nothing))
    if address.db:
        commands.append(Command(("SELECT", address.db), checked, nothing))
    # For CLIENT LIST; an ACL may forbid it, and then its answer is an error that matters to nobody.
    commands.append(Command(("CLIENT", "SETNAME", CLIENT_NAME), done, nothing))
    return commands
