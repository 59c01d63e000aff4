"""The inbox: block until something is there, read it, and cut it off only when the bytes are here.

One turn is one write of three commands and one round trip::

    LTRIM  inbox n -1            what the last turn brought
    BLMOVE inbox inbox LEFT LEFT a blocking look that takes nothing away
    LRANGE inbox 0 511           all that is there by now

A connection that ends in between costs nothing: what was not cut off is read again, and the second copy of a result
is dropped by its id. Redis answers BLMOVE with an error where it takes no writes (maxmemory, a demoted primary); the
LRANGE behind it still brings the results, and the next turn comes after a pause instead of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.producer.core.command import Command, Reply, nothing
from clipfleet.producer.core.trouble import Remedy, broken_by, remedy_for

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Inbox"]

MAX_READ: Final = 512
PAUSE_S: Final = 0.05


class Inbox:
    """The reading loop as a state machine.

    Args:
        key: the inbox's key.
        block_s: how long Redis may block, in s; shorter than any socket's timeout.
        deliver: called with each turn's results, as bytes, in order.
        refused: called when Redis refuses the reading for good, with its words.
    """

    def __init__(
        self,
        key: str,
        block_s: float,
        deliver: Callable[[list[bytes], float], None],
        refused: Callable[[str], None],
    ) -> None:
        self._key = key
        self._block = f"{block_s:.3f}"
        self._deliver = deliver
        self._refused = refused
        self._read = 0  # results of the last turn, to be cut off
        self._turning = False
        self.due = 0.0

    @property
    def busy(self) -> bool:
        """Whether a turn is under way: until it ends there is nothing to send."""
        return self._turning

    def commands(self, now: float, *, wanted: bool) -> list[Command]:
        """The next turn, when it is time for one and somebody waits (``wanted``)."""
        if self._turning or now < self.due:
            return []
        commands = []
        if self._read:
            commands.append(Command(("LTRIM", self._key, self._read, -1), self._trimmed, nothing))
            self._read = 0
        if wanted:
            self._turning = True
            commands += [
                Command(("BLMOVE", self._key, self._key, "LEFT", "LEFT", self._block), self._looked, nothing),
                Command(("LRANGE", self._key, 0, MAX_READ - 1), self._arrived, self._lost),
            ]
        return commands

    def connection_ended(self) -> None:
        """What was read and not cut off stays: the next server may be another, with another list under the key."""
        self._read = 0

    def _trimmed(self, reply: Reply, _now: float) -> None:
        if isinstance(reply, Exception):
            self._erred(reply, 0.0)

    def _looked(self, reply: Reply, now: float) -> None:
        if isinstance(reply, Exception):
            self._erred(reply, now)

    def _arrived(self, reply: Reply, now: float) -> None:
        self._turning = False
        if isinstance(reply, Exception):
            self._erred(reply, now)
        elif reply:
            self._read = len(reply)
            self._deliver(reply, now)

    def _erred(self, error: Exception, now: float) -> None:
        remedy = remedy_for(error)
        if remedy in {Remedy.RECONNECT, Remedy.MOVED}:
            raise broken_by(error)
        self.due = now + PAUSE_S
        if remedy is Remedy.GIVE_UP:
            self._refused(str(error))

    def _lost(self, _now: float) -> None:
        self._turning = False
