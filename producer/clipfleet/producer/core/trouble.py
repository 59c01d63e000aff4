"""What an error answer of Redis means for a connection. A policy: it returns values, the core applies them."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

__all__ = ["LinkBroken", "Remedy", "broken_by", "remedy_for"]


class Remedy(Enum):
    """What to do about it."""

    LOAD_SCRIPT = auto()  # send the text instead of the hash
    FULL = auto()  # no memory left for a write
    LATER = auto()  # the same connection, in a moment
    RECONNECT = auto()  # this server cannot serve now; ask again, perhaps another answers under this address
    MOVED = auto()  # the slot lives elsewhere
    GIVE_UP = auto()  # asking again cannot help


# By the error's first word (https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors).
_REMEDIES: Final = {
    "NOSCRIPT": Remedy.LOAD_SCRIPT,
    "OOM": Remedy.FULL,
    "UNBLOCKED": Remedy.LATER,  # the instance changed role, or its key went, under a blocked read
    "BUSY": Remedy.LATER,  # somebody's slow script
    "TRYAGAIN": Remedy.LATER,  # the slot is moving and its keys are on both sides
    "ASK": Remedy.LATER,  # the slot is moving: MOVED follows
    "CLUSTERDOWN": Remedy.LATER,
    "READONLY": Remedy.RECONNECT,  # it became a replica
    "LOADING": Remedy.RECONNECT,
    "MASTERDOWN": Remedy.RECONNECT,
    "MISCONF": Remedy.RECONNECT,  # it cannot write its snapshots and takes no writes
    "NOREPLICAS": Remedy.RECONNECT,
    "MOVED": Remedy.MOVED,
}


class LinkBroken(Exception):
    """This connection is of no use any more.

    Attributes:
        reason: for the log and for whoever gives up waiting.
        moved_to: ``host:port`` where a cluster says the queue lives; empty = nowhere else.
        refused: asking again cannot help (wrong password).
        by_answer: the server said so itself: asking at once would only hear it again.
        nobody: no server listens there.
        renewed: we end it ourselves, to make it anew: no news of Redis.
    """

    def __init__(
        self,
        reason: str,
        *,
        moved_to: str = "",
        refused: bool = False,
        by_answer: bool = False,
        nobody: bool = False,
        renewed: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.moved_to = moved_to
        self.refused = refused
        self.by_answer = by_answer
        self.nobody = nobody
        self.renewed = renewed


# Redis 6.2 puts the place within a script before the error's own words: "@user_script: 50: -READONLY You ...".
_IN_SCRIPT: Final = re.compile(r" -([A-Z]+) ")


def remedy_for(error: Exception) -> Remedy:
    """The remedy for an error reply."""
    text = str(error)
    word = text.split(" ", 1)[0]
    if word not in _REMEDIES and (inner := _IN_SCRIPT.search(text)):
        word = inner[1]
    return _REMEDIES.get(word, Remedy.GIVE_UP)


def broken_by(error: Exception) -> LinkBroken:
    """The end of the connection that gave ``error``, for MOVED and RECONNECT."""
    text = str(error)
    words = text.split(" ")
    return LinkBroken(text, moved_to=words[2] if words[0] == "MOVED" and len(words) > 2 else "", by_answer=True)
