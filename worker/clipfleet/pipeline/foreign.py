"""Somebody's code, called in a thread of ours, and what it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clipfleet.operators.operator import Noted

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.pipeline.work import Work

__all__ = ["contained", "said_of", "unnoted"]


def contained(run: Callable[..., Any], *values: Any) -> Any:
    """Call it; what would end the thread (``sys.exit``, a cancelled coroutine) ends the item alone.

    Raises:
        Exception: whatever it raises; a ``RuntimeError`` for what is no ``Exception``.
    """
    try:
        return run(*values)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(said_of(error)) from error


def said_of(error: BaseException) -> str:
    """What kind of error it is and what it says, if it can."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:  # noqa: BLE001  (its text is somebody's code, too)
        return kind


def unnoted(work: Work, value: Any) -> Any:
    """A value without its notes, which go to the request.

    Raises:
        Exception: the notes are no mapping, or one that cannot be read.
    """
    if isinstance(value, Noted):
        work.notes.update(value.notes)
        return value.value
    return value
