"""One Redis command and what to do with its answer: all that passes between the core and a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Command", "Reply", "nothing"]

# bytes, int, None, a list of replies, or the error (an instance) that the server gave.
Reply: TypeAlias = Any


class Command(NamedTuple):
    """A command that waits for its turn or for its answer.

    Attributes:
        args: the command's words.
        reply: called with the answer and the time; may raise ``LinkBroken``.
        lost: called with the time when the connection ended before the answer came, or while ``reply`` raised.
    """

    args: tuple[str | bytes | int, ...]
    reply: Callable[[Reply, float], None]
    lost: Callable[[float], None]


def nothing(*_: object) -> None:
    """For answers that matter to nobody."""
