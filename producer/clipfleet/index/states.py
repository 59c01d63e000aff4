"""What may be known of an item, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

from clipfleet.schemas.errors import ErrorCode

if TYPE_CHECKING:
    from clipfleet.schemas.errors import RequestFailed

__all__ = ["Known", "State", "Todo", "decide", "is_transient"]

# Verdicts on the fleet, its settings or its moment: the same picture may well be taken tomorrow.
_OF_THE_FLEET: Final = frozenset(
    {
        *(ErrorCode.EXPIRED, ErrorCode.CANCELLED, ErrorCode.FETCH_FORBIDDEN, ErrorCode.UNKNOWN_PIPELINE),
        *(ErrorCode.MODEL_MISMATCH, ErrorCode.STORE_FAILED),
    }
)


class State(IntEnum):
    """What is known of an item. The numbers are in the files; those from 5 on never had a row."""

    SENT = 1  # on its way, or it was when the run ended
    DONE = 2  # its row was acknowledged
    TRANSIENT = 3  # it failed of what passes: the next run sends it again
    PERMANENT = 4  # it failed of itself: it is sent again when it has changed, or when asked for
    DUPLICATE = 5  # another id has the same content: it is not sent
    ALONE = 6  # it was a duplicate, and the other one has gone: it is to be sent


class Todo(Enum):
    """What to do with an item."""

    SEND = "send"
    LEAVE_DONE = "leave_done"
    LEAVE_FAILED = "leave_failed"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one item.

    Attributes:
        signature: what it was when it was sent, see ``signature``.
        state: what became of it.
        error: why it failed; None when it did not.
        content: 16 bytes by which the same picture is known under another id; empty where it was not asked for.
    """

    signature: bytes
    state: State
    error: RequestFailed | None = None
    content: bytes = b""

    @property
    def has_no_row(self) -> bool:
        """Whether it was never sent."""
        return self.state >= State.DUPLICATE


def decide(known: Known | None, now: bytes, *, retry_failed: bool = False) -> Todo:
    """What to do with an item whose signature is ``now``, by what is known of it and of it alone."""
    if known is None or known.signature != now:
        return Todo.SEND
    if known.state is State.DONE:
        return Todo.LEAVE_DONE
    return Todo.LEAVE_FAILED if known.state is State.PERMANENT and not retry_failed else Todo.SEND


def is_transient(error: RequestFailed) -> bool:
    """Whether a failure passes by itself, or with a setting of the fleet, so that the next run sends the item again."""
    return error.retryable or error.code in _OF_THE_FLEET
