"""Keys of filters: what is looked for when a filter fits nothing."""

from __future__ import annotations

import pytest

from clipfleet.cli.filter_keys import kinds_of, meets_all, without_met
from clipfleet.store.filters import parse


@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        ("year < 2020", {"year": {"number"}}),
        (
            'not (year >= 1e3) AND tag == "year or yaer" or year in ["x", -.5] and tag != \'\'',
            {"year": {"number", "text"}, "tag": {"text"}},
        ),
        ("metadata['and'] like 'x\\'y%' and exists _k9", {"and": {"text"}, "_k9": set()}),
        # One key is one, however it is spelled; every row has an id
        ('metadata [ "n" ] > 1 or n == "a" or id in ["x", "y"] or metadata["id"] != "1"', {"n": {"number", "text"}}),
        ('id == "x" and not metadata["true"]==true&&!(k in [])', {"true": {"truth"}, "k": set()}),
        (
            "sold == TRUE or kind not in ['a', \"b\", 1.5e-3] or sold != false",
            {"sold": {"truth"}, "kind": {"text", "number"}},
        ),
        ("", {}),
    ],
)
def test_given_a_filter_then_its_keys_are_told_and_what_they_are_compared_with(expression, keys):
    assert kinds_of(expression) == keys
    assert list(kinds_of(expression)) == list(keys)
    parse(expression)
    for key in keys:
        parse(f'exists metadata["{key}"]')


@pytest.mark.parametrize(
    ("expression", "whether"),
    [
        ('year == 3 and metadata["or"] == "not || !" && exists n', True),
        ("year in [1, 2] and orange == true and nothing like 'x%'", True),
        ("year == 1 OR n == 2", False),
        ("year == 1||n == 2", False),
        ("n != 2", False),
        ("n Not in [2]", False),
        ("year == 1 and !(n == 2)", False),
    ],
)
def test_given_a_filter_then_it_is_known_whether_each_row_that_it_fits_has_all_of_its_keys(expression, whether):
    parse(expression)
    assert meets_all(expression) is whether


@pytest.mark.parametrize(
    ("row", "left"),
    [
        ({}, ["n", "t", "b", "or", "k"]),
        ({"n": "1", "t": 1, "b": 1, "or": None, "k": None}, ["n", "t", "b", "or", "k"]),
        ({"n": True, "t": "", "b": "true", "or": 0.5, "k": []}, ["n", "b"]),
        ({"n": 1.5, "t": "x", "b": False, "or": 2, "k": 0}, []),
    ],
)
def test_given_hits_then_only_keys_that_they_do_not_have_as_what_is_asked_for_are_left(row, left):
    asked = kinds_of('n < 1 and t == "" and b == true and metadata[ "or" ] > 0 and exists k')
    assert list(without_met(asked, [{}, row])) == left
    assert len(asked) == 5
