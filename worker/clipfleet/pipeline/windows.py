"""Cutting a list of rows into windows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["time_windows", "windows"]


def windows(*columns: Sequence[Any], size: int, step: int) -> list[Any]:
    """Each ``size`` rows, ``step`` apart, as one list per column; the last ones may be shorter.

    Returns:
        A list of windows: tuples of lists, or lists where there is one column.
    """
    starts = range(0, len(columns[0]), step)
    return [_row([list(column[start : start + size]) for column in columns]) for start in starts]


def time_windows(seconds: Sequence[float], *columns: Sequence[Any], size: float, step: float) -> list[Any]:
    """Rows of ``size`` seconds, ``step`` apart, from the first time on; those without a row are left out.

    Args:
        seconds: the time of each row, in any order.
        *columns: the others.
        size: of a window.
        step: between the starts of two.

    Raises:
        ValueError: a time is not finite.
    """
    if not seconds:
        return []
    if not all(map(math.isfinite, seconds)):
        raise ValueError("the time of a row is not finite")
    first = min(seconds)
    members: dict[int, list[int]] = {}
    for place, at in enumerate(seconds):
        last = math.floor((at - first) / step)
        number = last
        while number >= 0 and first + number * step + size > at:
            members.setdefault(number, []).append(place)
            number -= 1
    return [_row([[column[place] for place in members[number]] for column in columns]) for number in sorted(members)]


def _row(lists: list[Any]) -> Any:
    return lists[0] if len(lists) == 1 else tuple(lists)
