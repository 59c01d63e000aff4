"""Keys of filters: what is looked for when a filter fits nothing."""

from __future__ import annotations

import pytest

from clipfleet.cli.filter_keys import keys_of
from clipfleet.store.filters import parse


@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        ("year < 2020", ["year"]),
        ('not (year >= 1e3) AND tag == "year or yaer" or year < 2', ["year", "tag"]),
        ("metadata['and'] like 'x\\'y' and exists _k9", ["metadata['and']", "_k9"]),
        ("sold == TRUE or kind not in ['a', \"b\", 1.5e-3]", ["sold", "kind"]),
    ],
)
def test_given_a_filter_then_its_keys_are_told_as_it_spells_them(expression, keys):
    assert keys_of(expression) == keys
    for key in keys:
        parse(f"exists {key}")
