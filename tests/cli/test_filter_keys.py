"""Keys of filters: what is looked for when a filter fits nothing."""

from __future__ import annotations

import pytest

from clipfleet.cli.filter_keys import kinds_of, without_met
from clipfleet.store.filters import parse


@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        ("year < 2020", {"year": {"number"}}),
        (
            'not (year >= 1e3) AND tag == "year or yaer" or year in ["x", -.5] and tag != \'\'',
            {"year": {"number", "text"}, "tag": {"text"}},
        ),
        ("metadata['and'] like 'x\\'y%' and exists _k9", {"metadata['and']": {"text"}, "_k9": set()}),
        (
            "sold == TRUE or kind not in ['a', \"b\", 1.5e-3] or sold != false",
            {"sold": {"truth"}, "kind": {"text", "number"}},
        ),
        ("", {}),
    ],
)
def test_given_a_filter_then_its_keys_are_told_as_it_spells_them_and_what_they_are_compared_with(expression, keys):
    assert kinds_of(expression) == keys
    assert list(kinds_of(expression)) == list(keys)
    parse(expression)
    for key in keys:
        parse(f"exists {key}")


@pytest.mark.parametrize(
    ("row", "left"),
    [
        ({}, ["n", "t", "b", 'metadata[ "a\\"b" ]', "k"]),
        ({"n": "1", "t": 1, "b": 1, 'a"b': None, "k": None}, ["n", "t", "b", 'metadata[ "a\\"b" ]', "k"]),
        ({"n": True, "t": "", "b": "true", 'a"b': 0.5, "k": []}, ["n", "b"]),
        ({"n": 1.5, "t": "x", "b": False, 'a"b': 2, "k": 0}, []),
    ],
)
def test_given_hits_then_only_keys_that_they_do_not_have_as_what_is_asked_for_are_left(row, left):
    asked = kinds_of('n < 1 and t == "" and b == true and metadata[ "a\\"b" ] > 0 and exists k')
    assert list(without_met(asked, [{}, row])) == left
    assert len(asked) == 5
