"""The pages that other languages are written from say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clipfleet.schemas import ErrorCode, QueueKeys, scripts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text()
LIFECYCLE = (DOCS / "lifecycle.md").read_text()
GOLDEN = {case["name"]: case for case in json.loads((ROOT / "tests/golden/wire/v1.json").read_text())}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PROTOCOL, re.MULTILINE | re.DOTALL)


def section(page: str, title: str) -> str:
    return re.split(r"^## ", page, flags=re.MULTILINE)[
        [part.splitlines()[0] for part in re.split(r"^## ", page, flags=re.MULTILINE)].index(title)
    ]


def rows(text: str) -> list[list[str]]:
    """The cells of the table in ``text``, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_given_the_scripts_when_compared_with_the_page_then_their_text_is_there_word_for_word():
    printed = {text.split(":", 1)[0].removeprefix("-- "): text for text in blocks("lua")}
    names = {path.stem for path in (Path(scripts.__file__).parent / "lua").glob("*.lua")}
    assert set(printed) == names
    for name in names:
        assert printed[name] == scripts.load(name).text, f"copy {name}.lua into docs/protocol.md"


def test_given_the_error_codes_when_compared_with_the_page_then_its_table_is_complete():
    expected = [
        [f"`{code}`", "yes" if code.retryable else "", "owner" if code.needs_owner else "", code.meaning]
        for code in ErrorCode
    ]
    assert rows(section(PROTOCOL, "Errors")) == expected


def test_given_the_keys_when_compared_with_the_page_then_its_table_is_complete():
    keys = QueueKeys("Q")
    assert [row[0].strip("`") for row in rows(section(PROTOCOL, "Words and keys"))] == [
        *keys.lanes,
        keys.result("<id>"),
        keys.inbox("<producer>"),
        keys.cancel("<id>"),
        keys.base + "call:<producer>.<n>",
        keys.dead,
        keys.bytes,
        keys.workers,
        keys.worker("<worker>"),
        keys.fleet,
    ]


def bytes_of(dump: str) -> bytes:
    """What stands left of the two blanks in each line."""
    return bytes.fromhex("".join(re.split(r" {2,}", line.strip())[0] for line in dump.splitlines()))


def test_given_the_worked_example_when_compared_then_its_bytes_are_the_golden_ones():
    request, result = blocks("hex")
    assert bytes_of(request).hex() == GOLDEN["embed_text"]["hex"]
    assert bytes_of(result).hex() == GOLDEN["vector"]["hex"]
    assert f"request, {len(bytes_of(request))} bytes" in PROTOCOL


def test_given_the_shell_example_when_its_text_is_read_then_its_bytes_are_the_golden_ones():
    [text] = re.findall(r"printf '(.*?)'", PROTOCOL)
    data = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text).encode("latin-1")
    assert data.hex() == GOLDEN["embed_text"]["hex"]


@pytest.mark.parametrize("page", [PROTOCOL, LIFECYCLE], ids=["protocol", "lifecycle"])
def test_given_a_page_when_its_links_are_followed_then_they_lead_somewhere(page):
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", page):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (DOCS / target).exists(), target


def test_given_the_picture_and_the_table_of_the_life_cycle_when_compared_then_they_tell_the_same():
    arrows = re.findall(r"^    (\w+) --> (\w+): (.*)$", LIFECYCLE, re.MULTILINE)
    table = [(start.strip("`"), end.strip("`")) for start, end, *_ in rows(section(LIFECYCLE, "Transitions"))]
    assert sorted((start, end) for start, end, _ in arrows) == sorted(table)
    states = {row[0].strip("`") for row in rows(section(LIFECYCLE, "States"))}
    assert states == {state for start, end, _ in arrows for state in (start, end)}


def test_given_the_scripts_when_looked_for_in_the_life_cycle_then_each_move_names_its_own():
    through = {row[3].split("`")[1] for row in rows(section(LIFECYCLE, "Transitions")) if row[3].startswith("`")}
    assert {"admit", "renew", "handback", "reclaim", "settle"} <= through
