"""How large a request the queue takes: asked before a large one goes out, so that none is sent to be refused."""

from __future__ import annotations

import math
from typing import Final

from clipfleet.producer.core.command import Command, Reply
from clipfleet.schemas.limits import DEFAULT_MAX_QUEUE_BYTES, DEFAULT_MAX_REQUEST_BYTES

__all__ = ["SizeLimit"]

# The fleet may be told another limit at any time.
FRESH_S: Final = 5.0


class SizeLimit:
    """The queue's ``max_request_bytes``, or its ``max_queue_bytes`` where that is less.

    Args:
        key: the hash of the fleet's settings.

    Attributes:
        most: the largest that it takes, in bytes; infinity when it will not tell, since admission itself refuses too.
    """

    def __init__(self, key: str) -> None:
        self.most: float = math.inf
        self._key = key
        self._known_until = 0.0
        self._asking = False

    def known(self, now: float) -> bool:
        """Whether ``most`` was asked for lately."""
        return now < self._known_until

    def commands(self) -> list[Command]:
        """The question, unless it is on its way. The command is one that admission's script needs the right to."""
        if self._asking:
            return []
        self._asking = True
        return [Command(("HMGET", self._key, "max_request_bytes", "max_queue_bytes"), self._told, self._lost)]

    def _told(self, reply: Reply, now: float) -> None:
        self._asking = False
        self._known_until = now + FRESH_S
        if isinstance(reply, Exception):
            self.most = math.inf
        else:
            defaults = (DEFAULT_MAX_REQUEST_BYTES, DEFAULT_MAX_QUEUE_BYTES)
            self.most = min(map(_number, reply, defaults))

    def _lost(self, _now: float) -> None:
        self._asking = False


def _number(text: bytes | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() else default
