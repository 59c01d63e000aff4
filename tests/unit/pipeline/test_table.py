from __future__ import annotations

import base64
import copy
import io
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from clipfleet.pipeline.table import Row, Table

VECTOR = np.linspace(0.01, 1, 256, dtype=np.float32)
RED = np.zeros((40, 60, 3), np.uint8)
RED[..., 0] = 255


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(table: Table, limit: int = 10, *, terminal: bool = False) -> str:
    out = Terminal() if terminal else io.StringIO()
    table.show(limit, file=out)
    return out.getvalue()


@pytest.fixture
def table() -> Table:
    return Table(("label", "score"), [("cat", 0.5), ("dog", 0.25)])


# Reading ----------------------------------------------------------------------------------------------------------


def test_given_a_table_when_read_then_rows_by_number_columns_by_name_and_parts_by_slice(table):
    assert isinstance(table, Sequence)
    assert isinstance(table[0], Mapping)
    assert table[0] == Row({"label": 0, "score": 1}, ("cat", 0.5))
    assert (table[-1]["label"], table[-1].score) == ("dog", 0.25)
    assert dict(table[0]) == {"label": "cat", "score": 0.5}
    assert table["score"] == table.column("score") == [0.5, 0.25]
    assert table[1:] == Table(("label", "score"), [("dog", 0.25)])
    assert [row.label for row in table] == ["cat", "dog"]
    assert len(table) == 2


def test_given_a_wrong_name_when_read_then_the_error_says_what_there_is(table):
    for wrong in (lambda: table["vector"], lambda: table[0]["vector"]):
        with pytest.raises(KeyError, match="no column 'vector'; there are label, score"):
            wrong()
    with pytest.raises(AttributeError, match="no column 'vector'"):
        _ = table[0].vector
    assert "vector" not in table[0]


def test_given_one_value_when_asked_for_the_item_then_it_else_an_error(table):
    assert Table(("v",), [(7,)]).item() == 7
    for other in (table, table[:1], Table(("v",)), Table(("v",), [(1,), (2,)])):
        with pytest.raises(ValueError, match="not exactly one value"):
            other.item()


def test_given_arrays_inside_when_compared_then_one_answer():
    def one(last: float, dtype: type = np.float32) -> Table:
        return Table(("v", "all"), [(np.array([1, last], dtype), [{"box": np.array([last])}])])

    assert one(2) == one(2)
    assert one(2) != one(3)
    assert one(2) != one(2, np.float64)
    assert one(2)[0] == one(2)[0]
    assert one(2)[0] != one(3)[0]
    assert one(2) != "something else"
    assert Table(("v",), [(np.zeros(2),)]) != Table(("v",), [([0.0, 0.0],)])


@pytest.mark.parametrize(
    ("columns", "rows", "said"),
    [(("a", "a"), [], "two columns of one name"), (("a", "b"), [(1,)], "one value for each of a, b")],
)
def test_given_rows_that_do_not_fit_when_made_then_an_error(columns, rows, said):
    with pytest.raises(ValueError, match=said):
        Table(columns, rows)


def test_given_a_table_when_copied_or_pickled_then_the_same(table):
    for again in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert again == table
        assert again[0].label == "cat"
    assert pickle.loads(pickle.dumps(table[0])) == table[0]


def test_given_a_table_when_its_list_of_rows_is_changed_then_the_table_is_not():
    rows = [("cat",)]
    table = Table(("label",), rows)
    rows.append(("dog",))
    assert len(table) == 1
    with pytest.raises(TypeError):
        hash(table)


def test_given_large_values_when_printed_then_the_reprs_are_short(table):
    assert repr(table) == "Table(2 rows: label, score)"
    assert repr(Table(("v", "i"), [(VECTOR, RED)])[0]) == "Row(v=f32[256] 0.01 0.01388 0.01776 …, i=u8[40,60,3])"


# Looking ----------------------------------------------------------------------------------------------------------


def test_given_no_terminal_when_shown_then_plain_aligned_text():
    table = Table(("name", "vector", "n"), [("cat", VECTOR, 1), ("a longer one", VECTOR[:4], 12345.678)])
    assert shown(table).splitlines() == [
        "name          vector                               n",
        "cat           f32[256] 0.01 0.01388 0.01776 …      1",
        "a longer one  f32[4] 0.01 0.01388 0.01776 0.02165  12346",
    ]


def test_given_more_rows_than_the_limit_when_shown_then_it_says_how_many_more(table):
    assert shown(table, 1).splitlines()[1:] == ["cat    0.5", "… 1 more row"]


def test_given_a_label_that_steers_a_terminal_when_shown_then_it_does_not():
    table = Table(("label",), [("\x1b[2J\u202eevil\nline [red]",)])
    for terminal in (False, True):
        text = re.sub(r"\x1b\[[0-9;]*m", "", shown(table, terminal=terminal))
        assert "\x1b" not in text
        assert "\\x1b[2J\\u202eevil\\nline [red]" in text


def test_given_a_terminal_when_shown_then_pictures_are_coloured_half_blocks(monkeypatch):
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(Table(("picture",), [(RED,)]), terminal=True)
    assert "\x1b[38;2;255;0;0;48;2;255;0;0m▀" in text
    assert "u8[40,60,3]" in text
    assert max(line.count("▀") for line in text.splitlines()) == 20


def test_given_hits_when_shown_in_a_terminal_then_a_line_each():
    hits = [{"id": f"{n}.png", "score": 0.9 - n / 10} for n in range(7)]
    text = shown(Table(("hits",), [(hits,)]), terminal=True)
    assert "0.900  0.png" in text
    assert "… 2 more" in text
    assert "0.png 0.900 · 1.png 0.800" in shown(Table(("hits",), [(hits,)]))


def test_given_no_rich_when_shown_in_a_terminal_then_plain_text(table):
    script = (
        "import sys; sys.modules['rich'] = None\n"
        "from clipfleet.pipeline.table import Table\n"
        "sys.stdout.isatty = lambda: True\n"
        "Table(('label',), [('cat',)]).show()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("label\ncat\n", "")


# HTML -------------------------------------------------------------------------------------------------------------


def test_given_strangers_text_when_shown_as_html_then_it_is_text():
    evil = '<script>alert("x")</script>'
    hits = [{"id": evil, "score": 1.0}]
    page = Table((evil, "hits", "n"), [(evil, hits, {evil: [evil]})])._repr_html_()
    assert "<script" not in page
    assert '"x"' not in page
    root = ET.fromstring(f"<div>{page}</div>")
    assert root.find(".//th").text == evil
    assert root.find(".//td").text == evil


def test_given_a_picture_when_shown_as_html_then_a_small_png_inside():
    page = Table(("picture",), [(np.repeat(RED, 10, axis=1),)])._repr_html_()
    data = re.search(r'src="data:image/png;base64,([^"]+)"', page)[1]
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.size == (96, 6)
        assert image.getpixel((3, 3)) == (255, 0, 0)


def test_given_many_rows_when_shown_as_html_then_fifty_and_how_many_more():
    page = Table(("n",), [(n,) for n in range(60)])._repr_html_()
    assert page.count("<tr>") == 51
    assert "… 10 more rows" in page
