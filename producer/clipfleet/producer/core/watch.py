"""Results on keys of their own (``reply="key"``): looked up for as long as somebody waits.

Many keys share one round trip on the connection that there is; a blocking read would take a connection for each. The
pause between looks grows from 10 ms to 250 ms, for each key on its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from clipfleet.producer.core.command import Command, Reply
from clipfleet.producer.core.trouble import Remedy, broken_by, remedy_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.producer.core.pending import Pending
    from clipfleet.schemas.keys import QueueKeys

__all__ = ["KeyWatch"]

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.25
GROWTH: Final = 1.5
# A worker that meets a request too late says so itself, and is found within two looks; else its caller is told here.
GRACE_S: Final = 2 * LONGEST_PAUSE_S


class _Look:
    __slots__ = ("asking", "due", "pause", "request", "until", "waiters")

    def __init__(self, request: Pending, now: float) -> None:
        self.request = request
        self.asking = False
        self.due = 0.0
        self.pause = FIRST_PAUSE_S
        # A result may have been there for long when somebody asks for it first.
        self.until = math.inf if request.found else max(now, request.deadline) + GRACE_S
        self.waiters = 0


class KeyWatch:
    """The keys that somebody waits for.

    Args:
        keys: the queue's keys.
        deliver: called with a request and the bytes found under its key.
    """

    def __init__(self, keys: QueueKeys, deliver: Callable[[Pending, bytes, float], None]) -> None:
        self._keys = keys
        self._deliver = deliver
        self._looks: dict[Pending, _Look] = {}

    def add(self, request: Pending, now: float) -> None:
        """One more waits for it: look."""
        look = self._looks.setdefault(request, _Look(request, now))
        look.waiters += 1

    def leave(self, request: Pending) -> None:
        """One waits no more; nobody left, nobody looks."""
        look = self._looks.get(request)
        if look is not None:
            look.waiters -= 1
            if not look.waiters:
                self.drop(request)

    def drop(self, request: Pending) -> None:
        """It has ended."""
        self._looks.pop(request, None)

    def __len__(self) -> int:
        return len(self._looks)

    @property
    def requests(self) -> list[Pending]:
        """All that somebody waits for."""
        return list(self._looks)

    def overdue(self, now: float) -> list[Pending]:
        """Those whose deadline passed without a result."""
        return [look.request for look in self._looks.values() if now >= look.until]

    @property
    def gives_up(self) -> float:
        """When the next is overdue; infinity when none will be."""
        return min((look.until for look in self._looks.values()), default=math.inf)

    @property
    def due(self) -> float | None:
        """When the next look is due; None when none is."""
        if not self._looks:
            return None
        return min((look.due for look in self._looks.values() if not look.asking), default=None)

    def commands(self, now: float) -> list[Command]:
        """The looks that are due."""
        return [self._command(look) for look in self._looks.values() if not look.asking and look.due <= now]

    def _command(self, look: _Look) -> Command:
        look.asking = True

        def found(reply: Reply, now: float) -> None:
            if isinstance(reply, Exception) and remedy_for(reply) in {Remedy.RECONNECT, Remedy.MOVED}:
                raise broken_by(reply)
            again(now)
            if isinstance(reply, list) and reply and look.request in self._looks:
                self._deliver(look.request, reply[0], now)

        def again(now: float) -> None:
            look.asking = False
            look.due = now + look.pause
            look.pause = min(LONGEST_PAUSE_S, look.pause * GROWTH)

        return Command(("LRANGE", self._keys.result(look.request.id), 0, 0), found, again)
