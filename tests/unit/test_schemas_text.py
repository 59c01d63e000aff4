"""Counts in people's words: of one thing, and of any other number of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clipfleet.schemas.text import counted

ROOT = Path(__file__).parents[2]
_COUNT = re.compile(
    r"""f["'].*(\{[^{}]+:,\}|\{len\([^{}]+\)\}) (\w+ )?"""
    "(columns|duplicates|entries|files|hits|images|items|jobs|letters|parts|pictures|requests|rows|sources|workers)"
)


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (2, ("row",), "2 rows"),
        (12_345, ("row",), "12,345 rows"),
        (1, ("entry", "entries"), "1 entry"),
        (3, ("entry", "entries"), "3 entries"),
        (1, ("row matches", "rows match"), "1 row matches"),
    ],
)
def test_given_a_count_when_it_is_told_then_one_is_one(count, words, said):
    assert counted(count, *words) == said


def test_given_the_command_line_then_no_count_that_may_be_one_has_a_plural_beside_it():
    """``f"{n:,} pictures"`` says "1 pictures" some day; ``counted`` does not."""
    wrong = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted((ROOT / "producer/clipfleet/cli").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if _COUNT.search(line)
    ]
    assert wrong == []
    assert _COUNT.search('out.line(f"{len(rows)} other files")')
