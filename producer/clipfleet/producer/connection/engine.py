"""The core's sockets and clock, on an asyncio loop that owns both.

A connection is made when there is something to say on it, and made again, with growing pauses, for as long as there
is. Whatever is under way belongs to the engine and not to a caller: cancelling an await breaks nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from clipfleet.producer.connection.link import Wire, connect
from clipfleet.producer.core.trouble import LinkBroken
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.producer.connection.address import Address
    from clipfleet.producer.core.command import Command
    from clipfleet.producer.core.core import Core

__all__ = ["Engine"]

log = logging.getLogger("clipfleet.producer")

# Firewalls forget a silent connection without a word; a new one costs one round trip, finding out costs a timeout.
STALE_AFTER_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0


class Engine:
    """Runs a core until ``close``. Every method is for the loop's thread alone.

    Args:
        core: the producer's state.
        address: the Redis server.
        io_timeout_s: how long Redis may be silent when an answer is due.
        block_s: how much longer on the connection that blocks.
    """

    def __init__(self, core: Core, address: Address, *, io_timeout_s: float, block_s: float) -> None:
        self.core = core
        self.closed = False
        self.loop = asyncio.get_running_loop()
        self.io_timeout_s = io_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._decided: asyncio.Future[None] | None = None
        self._seed = self.address = address
        commands = _Way(lambda: core.wants_commands, core.commands, lambda: None, io_timeout_s, tells_of_redis=True)
        inbox = _Way(
            lambda: core.wants_inbox,
            core.inbox_commands,
            core.inbox_ended,
            io_timeout_s + block_s,
            tells_of_redis=False,
        )
        self._links = (_Link(self, commands), _Link(self, inbox))

    def pump(self) -> None:
        """Send what is to be sent, tell who is to be told, set the clock."""
        now = self.loop.time()
        try:
            if self.closed:
                self.core.fail_all(error_for(ErrorCode.UNAVAILABLE, "the client was closed"))
            else:
                for link in self._links:
                    link.pump(now)
        except Exception as error:
            # A mistake of ours: those who wait hear of it instead of waiting for nothing.
            log.exception("the client made a mistake")
            self.core.fail_all(error_for(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))
        for request in self.core.take_finished():
            request.notify()
        if self._decided is not None and not self._decided.done() and not self.core.unsent:
            self._decided.set_result(None)
        if not self.closed:
            self._arm(now)

    def redirect(self, host_and_port: str) -> None:
        """A cluster says where the queue lives now; an empty text leads back to the address that we were given."""
        host, _, port = host_and_port.rpartition(":")
        moved = replace(self._seed, host=host or self.address.host, port=int(port)) if port.isdecimal() else self._seed
        self.address = moved

    async def close(self, grace_s: float) -> None:
        """Let admissions under way be decided, for at most ``grace_s``; then end whatever is unanswered."""
        self._decided = self.loop.create_future()
        try:
            self.pump()
            await asyncio.wait_for(self._decided, grace_s)
        except TimeoutError:
            log.warning("closed before Redis had taken all requests")
        finally:
            self.closed = True
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.gather(*(link.close() for link in self._links))
            self.pump()

    def _arm(self, now: float) -> None:
        due = min(self.core.due(now), *(link.due for link in self._links))
        if self._timer is not None:
            if due >= self._timer.when():
                return  # it fires early, and looks again
            self._timer.cancel()
            self._timer = None
        if due < float("inf"):
            self._timer = self.loop.call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self.loop.time()
        self.core.tick(now)
        for link in self._links:
            link.check(now)
        self.pump()


@dataclass(frozen=True, slots=True)
class _Way:
    """What one of the two connections is for."""

    wanted: Callable[[], bool]
    commands: Callable[[float], list[Command]]
    ended: Callable[[], None]
    answer_within_s: float
    tells_of_redis: bool


class _Link:
    """One connection, made anew as often as needed."""

    def __init__(self, engine: Engine, way: _Way) -> None:
        self._engine = engine
        self._way = way
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        self._gone = engine.loop.create_future()
        self._gone.set_result(None)

    @property
    def due(self) -> float:
        return float("inf") if self._wire is None else self._wire.waiting_since + self._way.answer_within_s

    def pump(self, now: float) -> None:
        wire = self._wire
        if wire is not None and wire.alive:
            if now - wire.last_used > STALE_AFTER_S and self._way.wanted():
                wire.stop(LinkBroken("silent for too long to be trusted", renewed=True))
            else:
                wire.send(self._way.commands(now))
        elif wire is None and self._connecting is None and self._way.wanted():
            self._connecting = self._engine.loop.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)

    def check(self, now: float) -> None:
        if self._wire is not None and self._wire.overdue(now, self._way.answer_within_s):
            self._wire.stop(LinkBroken(f"Redis gave no answer for {self._way.answer_within_s:g} s"))

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._wire is not None:
            self._wire.stop(LinkBroken("the client was closed"))
        await self._gone

    async def _connect(self) -> None:
        while self._way.wanted():
            if self._pause_s:
                await asyncio.sleep(self._pause_s * random.uniform(0.7, 1.3))  # noqa: S311 - spreads the herd
            try:
                address = self._engine.address
                self._wire = await connect(address, self._engine.io_timeout_s, self._useful, self._ended)
            except LinkBroken as broken:
                self._grow_pause()
                self._engine.redirect("")
                self._away(broken)
                self._engine.pump()
            else:
                self._gone = self._engine.loop.create_future()
                return

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("the connection to Redis cannot be made", exc_info=error)
            self._engine.core.fail_all(error_for(ErrorCode.INTERNAL, f"cannot connect: {type(error).__name__}"))
        self._engine.pump()

    def _useful(self) -> None:
        self._pause_s = 0.0
        if self._way.tells_of_redis:
            self._engine.core.back(self._engine.loop.time())
        self._engine.pump()

    def _ended(self, reason: LinkBroken) -> None:
        self._wire = None
        self._gone.set_result(None)
        self._way.ended()
        if reason.moved_to:
            self._engine.redirect(reason.moved_to)
        elif reason.by_answer:
            self._grow_pause()
        # Closed by us, with requests outstanding or not, is no news of Redis.
        if self._way.wanted() and not self._engine.closed and not reason.renewed:
            self._away(reason)
        self._engine.pump()

    def _away(self, reason: LinkBroken) -> None:
        if self._way.tells_of_redis or reason.refused:
            now = self._engine.loop.time()
            self._engine.core.away(reason.reason, now, refused=reason.refused, nobody=reason.nobody)

    def _grow_pause(self) -> None:
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause_s * 2))
