"""Is there a worker? Asked only when nothing has told lately: a result within the last seconds is the best proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.producer.core.command import Command, Reply, nothing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Presence"]

FRESH_S: Final = 5.0
# Workers write their heartbeat each second; a busy machine may miss a few.
ALIVE_WITHIN_MS: Final = 10_000


class Presence:
    """Holds the first admission after a quiet time back until it is known that somebody will take it.

    One more round trip then, and none while results flow. Admitting first and asking at the same time would save it,
    at the price of an abandoned entry in the queue for each caller that was told ``unavailable``.

    Args:
        key: the zset of workers.
        always: do not ask: callers wait for a worker (``wait_for_worker=True``).
        absent: called when no worker lives.
    """

    def __init__(self, key: str, *, always: bool, absent: Callable[[], None]) -> None:
        self._key = key
        self._always = always
        self._absent = absent
        self._known_until = 0.0
        self._asking = False
        self._now_ms = 0

    def seen(self, now: float) -> None:
        """A worker gave a sign of life."""
        self._known_until = now + FRESH_S

    def known(self, now: float) -> bool:
        """Whether admission may go ahead."""
        return self._always or now < self._known_until

    def commands(self) -> list[Command]:
        """The question, unless it is on its way."""
        if self._asking:
            return []
        self._asking = True
        return [
            Command(("TIME",), self._time, nothing),
            Command(("ZREVRANGE", self._key, 0, 0, "WITHSCORES"), self._newest, self._lost),
        ]

    def _time(self, reply: Reply, _now: float) -> None:
        self._now_ms = 0 if isinstance(reply, Exception) else int(reply[0]) * 1000 + int(reply[1]) // 1000

    def _newest(self, reply: Reply, now: float) -> None:
        self._asking = False
        # Redis that will not tell (an ACL without it, a server still loading) is no proof of absence.
        unknown = isinstance(reply, Exception) or not self._now_ms
        if unknown or (reply and self._now_ms - float(reply[1]) <= ALIVE_WITHIN_MS):
            self.seen(now)
        else:
            self._absent()

    def _lost(self, _now: float) -> None:
        self._asking = False
