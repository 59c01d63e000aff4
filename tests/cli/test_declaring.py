"""``--field NAME:TYPE``: what it may be, said before anything is sent."""

from __future__ import annotations

import pytest

from clipfleet.cli.declaring import fields_of, parse_fields
from clipfleet.cli.errors import CliError, Exit
from clipfleet.store import Field


def test_given_names_and_types_then_they_are_the_store_s():
    given = parse_fields(["year:int", "price=float", "_x9:bool", "tag:str"])
    assert given == {"year": "int", "price": "float", "_x9": "bool", "tag": "str"}
    assert fields_of(given)[:2] == [Field("year", "int"), Field("price", "float")]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["year"], "NAME:TYPE"),
        ([""], "NAME:TYPE"),
        (["year:"], "NAME:TYPE"),
        (["year:date"], "a type of int, float, bool, str"),
        (["9year:int"], "NAME:TYPE"),
        (["jahr\u00e4:int"], "NAME:TYPE"),
        (["a b:int"], "NAME:TYPE"),
        (["year:int", "year=str"], "year is declared twice"),
    ],
)
def test_given_what_is_none_then_wrong_usage_names_it(given, text):
    with pytest.raises(CliError, match=text) as refused:
        parse_fields(given)
    assert refused.value.exit is Exit.USAGE
    assert str(refused.value).startswith(f"--field {given[-1]}: ")


@pytest.mark.parametrize("name", ["id", "vector", "metadata", "AND", "price__set"])
def test_given_a_name_that_no_collection_can_have_then_wrong_usage(name):
    with pytest.raises(CliError, match="cannot declare the field") as refused:
        fields_of(parse_fields([f"{name}:int"]))
    assert refused.value.exit is Exit.USAGE
