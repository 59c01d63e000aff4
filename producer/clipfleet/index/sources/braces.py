"""Brace ranges as shells have them: ``shard-{000..099}.tar``, ``{train,test}.csv``."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["expand"]

_BRACES: Final = re.compile(r"\{(?:(\d{1,9})\.\.(\d{1,9})|([^{}]*,[^{}]*))\}")
_MOST: Final = 1_000_000


def expand(pattern: str) -> Iterator[str]:
    """Every text that ``pattern`` stands for, itself where it has no braces; braces within braces are not read.

    Raises:
        ValueError: more than a million.
    """
    parts: list[Sequence[str | int]] = []
    widths: list[int] = []
    at, total = 0, 1
    for found in _BRACES.finditer(pattern):
        parts += [[pattern[at : found.start()]], _choices(found)]
        widths += [0, _width(found)]
        total *= len(parts[-1])
        at = found.end()
    if total > _MOST:
        raise ValueError(f"{pattern}: stands for {total:,} names, at most {_MOST:,} are taken")
    parts.append([pattern[at:]])
    widths.append(0)
    for chosen in product(*parts):
        yield "".join(str(each).zfill(width) for each, width in zip(chosen, widths, strict=True))


def _choices(found: re.Match[str]) -> Sequence[str | int]:
    first, last, words = found.groups()
    if words is not None:
        return words.split(",")
    low, high = int(first), int(last)
    return range(low, high + 1) if low <= high else range(low, high - 1, -1)


def _width(found: re.Match[str]) -> int:
    """As in shells: where one of both numbers has leading zeros all get the width of the longer one."""
    first, last, _ = found.groups()
    if first is None or not any(len(each) > 1 and each.startswith("0") for each in (first, last)):
        return 0
    return max(len(first), len(last))
