"""Metadata of declared types: what text is read as, and what does not fit."""

from __future__ import annotations

import pytest

from clipfleet.index import Failure, Item, open_sources, typed
from clipfleet.index.sources import Seen
from clipfleet.schemas.errors import ErrorCode


class Source:
    about = "a test's"

    def __init__(self, *metadata):
        self._metadata = metadata

    def events(self, seen):
        for number, each in enumerate(self._metadata):
            yield Item(f"i{number}", f"row {number}", b"x", each)

    def count(self):
        return iter(self._metadata)


def events(fields, *metadata):
    (source,) = typed([Source(*metadata)], fields)
    with Seen() as seen:
        return list(source.events(seen)), source


FITS = [
    ("int", "2020", 2020),
    ("int", " -7 ", -7),
    ("int", "2020.0", 2020),
    ("int", 3.0, 3),
    ("int", 2**63 - 1, 2**63 - 1),
    ("int", "", None),
    ("int", None, None),
    ("float", "1e-3", 0.001),
    ("float", "3", 3.0),
    ("float", 3, 3.0),
    ("float", "", None),
    ("bool", "Yes", True),
    ("bool", "0", False),
    ("bool", 1, True),
    ("bool", True, True),
    ("bool", "", None),
    ("str", "", ""),
    ("str", "x", "x"),
    ("str", 12, "12"),
    ("str", "é" * 32_767, "é" * 32_767),
]


@pytest.mark.parametrize(("kind", "given", "expected"), FITS)
def test_given_what_fits_then_it_is_of_its_type_and_the_rest_is_as_it_was(kind, given, expected):
    ((item,), source) = events({"a": kind}, {"a": given, "b": "2020"})
    assert (item.metadata, type(item.metadata["a"])) == ({"a": expected, "b": "2020"}, type(expected))
    assert source.met == (set() if given is None else {"a"})


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *(("int", each) for each in ("2020.5", "1e3", "0x10", "٣", "1_000", "x", 2**63, str(2**63), 1.5, True, [1])),
        *(("float", each) for each in ("nan", "inf", "1_0.0", "1,5", "x", True, float("nan"), 10**400, {})),
        *(("bool", each) for each in ("maybe", 2, 1.0)),
        *(("str", each) for each in (1.5, True, [], "é" * 32_768)),
    ],
)
def test_given_what_does_not_fit_then_that_item_fails_alone_and_names_key_type_and_value(kind, given):
    (found, _) = events({"a": kind}, {"a": given}, {"b": 1})
    bad, good = found
    assert isinstance(bad, Failure)
    assert (bad.id, bad.label, bad.error.code) == ("i0", "row 0", ErrorCode.BAD_REQUEST)
    assert f"metadata a is declared {kind}, and " in bad.error.message
    assert good.metadata == {"b": 1}


def test_given_a_type_that_does_not_exist_then_it_says_which_there_are():
    with pytest.raises(ValueError, match="date: types are int, float, bool, str"):
        typed([], {"a": "date"})


def test_given_a_table_then_its_columns_are_typed(tmp_path):
    (tmp_path / "t.csv").write_text("url,year,price\nhttp://a/1.png,1999,\nhttp://a/2.png,soon,1.5\n")
    (source,) = typed(open_sources([str(tmp_path / "t.csv")]), {"year": "int", "price": "float"})
    with Seen() as seen:
        first, second = source.events(seen)
    assert (first.metadata["year"], first.metadata["price"]) == (1999, None)
    assert (second.label.endswith("t.csv:3"), "year is declared int, and 'soon' is no int" in second.error.message) == (
        True,
        True,
    )
    assert "addresses in column 'url'" in source.about
    assert len(list(source.count())) >= 2
