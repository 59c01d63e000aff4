"""Pages whose every line has an example: read the table, and the code under each heading."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.py)\n")


@dataclass(frozen=True)
class Block:
    """A piece of code of a page.

    Attributes:
        language: as the page says.
        code: padded by empty lines, so that a traceback tells the page's line.
        file: for code that begins with ``# name.py``: what it wants to be saved as.
    """

    language: str
    code: str
    file: str | None


def anchor(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


def examples(page: Path) -> dict[str, list[Block]]:
    """The code under each heading of the second level, by the heading's anchor."""
    text = page.read_text(encoding="utf-8")
    found: dict[str, list[Block]] = {}
    starts = [(match.start(), match[1]) for match in re.finditer(r"^## (.*)$", text, re.MULTILINE)]
    for (start, title), (end, _) in zip(starts, [*starts[1:], (len(text), "")], strict=True):
        found[anchor(title)] = [_block(match, text) for match in _BLOCK.finditer(text, start, end)]
    return {title: blocks for title, blocks in found.items() if blocks}


def _block(match: re.Match[str], text: str) -> Block:
    lines = text.count("\n", 0, match.start(2))
    file = _FILE.match(match[2])
    return Block(match[1], "\n" * lines + match[2], file and file[1])


def links(page: Path) -> list[str]:
    """The anchor in the last cell of each row of the tables, heads aside; a row without one is an empty string."""
    text = re.sub(r"^\|.*\n\|-.*\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [re.search(r"\| \[[^]]+\]\(#([^)]+)\) \|$", row) for row in text.splitlines() if row.startswith("|")]
    return [match[1] if match else "" for match in found]
