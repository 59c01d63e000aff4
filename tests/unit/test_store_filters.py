"""Filters: what is read, what is refused, and what text reaches Milvus."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Field, combine
from clipfleet.store.compile import compile_filter, ids_expression, quote
from clipfleet.store.filters import And, Compare, Exists, In, Like, Not, Or, parse

FIELDS = (Field("year", "int"), Field("weight", "float"), Field("tag", "str"), Field("ok", "bool"))
BREAKER = 'x" or 1==1 or path like "%\\'


def compiled(given_filter: object) -> str:
    return compile_filter(parse(given_filter), FIELDS)


@pytest.mark.parametrize(
    ("expression", "mapping"),
    [
        ("year == 2020", {"year": 2020}),
        ("year >= 2020 and year < 2030", {"year": {">=": 2020, "<": 2030}}),
        ("tag == \"a\" or tag == 'b'", {"$or": [{"tag": "a"}, {"tag": "b"}]}),
        ("NOT (ok == TRUE)", {"$not": {"ok": True}}),
        (
            "! ok == true && x == 1 || y == -1.5e3",
            {"$or": [{"$and": [{"$not": {"ok": True}}, {"x": 1}]}, {"y": -1500.0}]},
        ),
        ('tag in ["a", "b"]', {"tag": {"in": ["a", "b"]}}),
        ('tag not in ["a"]', {"$not": {"tag": {"in": ["a"]}}}),
        ("tag in []", {"tag": {"in": []}}),
        ('path like "a/%"', {"path": {"like": "a/%"}}),
        ('path not like "a/%"', {"path": {"not like": "a/%"}}),
        ("exists year", {"year": {"exists": True}}),
        ("not exists year", {"year": {"exists": False}}),
        ('metadata["year"] == 1', {"year": 1}),
        ("not not x == 1", {"$not": {"$not": {"x": 1}}}),
        ("a == 1 and (b == 2 or not c == 3)", {"$and": [{"a": 1}, "b == 2 or not c == 3"]}),
        ("not (a == 1 or b == 2)", {"$not": "a == 1 or b == 2"}),
        (r'x == "q\"b\\n\n\t\r\'"', {"x": "q\"b\\n\n\t\r'"}),
    ],
)
def test_given_either_notation_when_parsed_then_the_tree_is_one(expression: str, mapping: dict[str, object]) -> None:
    assert parse(expression) == parse(mapping)


def test_given_words_of_different_strength_when_parsed_then_and_binds_before_or() -> None:
    a, b, c = (Compare(name, "==", 1) for name in "abc")
    assert parse("a == 1 or b == 1 and not c == 1") == Or((a, And((b, Not(c)))))
    assert parse("(a == 1 or b == 1) and c == 1") == And((Or((a, b)), c))


def test_given_patterns_when_parsed_then_only_a_prefix_or_plain_text_is_one() -> None:
    assert parse({"p": {"like": "a_b%"}}) == Like("p", "a_b")
    assert parse({"p": {"like": "100\\%\\\\%"}}) == Like("p", "100%\\")
    assert parse({"p": {"like": "100\\%"}}) == Compare("p", "==", "100%")
    assert parse({"p": {"like": "%"}}) == Like("p", "")
    for pattern in ("%a", "a%b", "%%", "a%b%"):
        with pytest.raises(RequestFailed, match="wildcard"):
            parse({"p": {"like": pattern}})


@pytest.mark.parametrize("nothing", [None, {}, "", "  \n"])
def test_given_nothing_when_parsed_then_nothing_is_filtered(nothing: object) -> None:
    assert parse(nothing) is None
    assert compiled(nothing) == ""
    assert combine(nothing, nothing) is None


@pytest.mark.parametrize(
    "bad",
    [
        "1 == 1",
        "true",
        "year",
        "year ==",
        "year == 1 year == 2",
        "(year == 1",
        "year == 1)",
        "year = 1",
        "year == other",
        "year == 'a' + 'b'",
        "1 < year",
        "1 < year < 3",
        "year == $meta",
        "json_contains(tags, 1)",
        "metadata['a'] ['b'] == 1",
        "metadata[year] == 1",
        "metadata['a\"] == 1 or x'] == 1",
        "tag like 5",
        "tag in 'a'",
        "tag in ['a' 'b']",
        "tag not == 1",
        "ok > true",
        "x == 'unterminated",
        "x == 'line\nbreak'",
        r"x == '\u0041'",
        "x == 1e999",
        "x == 99999999999999999999999",
        "x == " + "9" * 5000,
        "x == '\ud800'",
        "é == 1",
        "x == 1 -- comment",
        "x == 1; drop",
        "x == '" + "a" * 70_000 + "'",
        "(" * 40 + "x == 1" + ")" * 40,
        "not " * 40 + "x == 1",
        " or ".join(["x == 1"] * 1001),
        {"year": {"~": 1}},
        {"year": {}},
        {"year": [1]},
        {"year": None},
        {"year": {"in": "abc"}},
        {"year": {"in": [[1]]}},
        {"year": {"in": list(range(1001))}},
        {"year": float("nan")},
        {"year": float("inf")},
        {"year": 2**63},
        {"year": -(2**63)},
        {"year": b"x"},
        {"year": {"exists": 1}},
        {"a b": 1},
        {'a"] or 1==1 or metadata["b': 1},
        {"": 1},
        {1: 1},
        {"$and": []},
        {"$or": {"a": 1}},
        {"$not": "a =="},
        {"$and": [{"tenant": "a"}, "x == 1) or (x == 2"]},
        {"$and": [{"tenant": "a"}, ""]},
        {"$and": [{"tenant": "a"}, ["x"]]},
        {"$and": [{}]},
        {"$where": "1"},
        ["year"],
        5,
    ],
    ids=lambda bad: str(bad)[:30],
)
def test_given_what_is_no_filter_when_parsed_then_it_is_a_bad_request(bad: object) -> None:
    with pytest.raises(RequestFailed, match="filter: ") as error:
        parse(bad)
    assert error.value.code is ErrorCode.BAD_REQUEST


def test_given_a_deep_mapping_when_parsed_then_it_is_refused_and_not_recursed_into() -> None:
    deep: dict[str, object] = {"a": 1}
    for _ in range(100_000):
        deep = {"$not": deep}
    with pytest.raises(RequestFailed, match="nested deeper"):
        parse(deep)


@pytest.mark.parametrize(
    ("given_filter", "expression"),
    [
        ("year == 2020", "(year__set == true and year == 2020)"),
        ("year != 2020", "(year__set == false or year != 2020)"),
        ("not year < 2020", "(year__set == false or year >= 2020)"),
        ("year > 2020.5", "(year__set == true and year > 2020)"),
        ("year >= 2020.5", "(year__set == true and year >= 2021)"),
        ("year < 2020.5", "(year__set == true and year < 2021)"),
        ("year <= 2020.5", "(year__set == true and year <= 2020)"),
        ("year == 2020.0", "(year__set == true and year == 2020)"),
        ("year == 2020.5", '(year__set == true and id == "")'),
        ("year < 1e30", '(year__set == true and id != "")'),
        ("year > 1e30", '(year__set == true and id == "")'),
        ("year > -1e30", '(year__set == true and id != "")'),
        ("year in [1, 2.0, 2.5]", "(year__set == true and year in [1, 2])"),
        ("not tag in ['a']", '(tag__set == false or (not (tag in ["a"])))'),
        ("ok in [true]", "(ok__set == true and ok == true)"),
        ("weight == 1", "(weight__set == true and weight == 1)"),
        ("exists ok", "ok__set == true"),
        ("not exists ok", "ok__set == false"),
        ("free == 1", 'metadata["free"] == 1'),
        ("free != 1", '((not (exists metadata["free"])) or metadata["free"] != 1)'),
        ("free in [1, 'a']", '(metadata["free"] == 1 or metadata["free"] == "a")'),
        ("free not in []", '((not (exists metadata["free"])) or id != "")'),
        ("exists free", '(exists metadata["free"])'),
        ("id == 'a'", 'id == "a"'),
        ("exists id", 'id != ""'),
        ("tag like 'a/%'", '(tag__set == true and (tag >= "a/" and tag < "a0"))'),
        ("x not like 'a%'", '((not (exists metadata["x"])) or (metadata["x"] < "a" or metadata["x"] >= "b"))'),
        ({"id": {"like": "\U0010ffff%"}}, 'id >= "\U0010ffff"'),
        ({"id": {"like": "a\ud7ff%"}}, '(id >= "a\ud7ff" and id < "a\ue000")'),
        ("not (year == 1 and ok == true)", "((year__set == false or year != 1) or (ok__set == false or ok != true))"),
        ({"path": BREAKER}, 'metadata["path"] == "x\\" or 1==1 or path like \\"%\\\\"'),
    ],
)
def test_given_a_filter_when_compiled_then_both_parsers_can_read_it(given_filter: object, expression: str) -> None:
    assert compiled(given_filter) == expression


@pytest.mark.parametrize(
    "bad",
    [
        "year == 'a'",
        "year == true",
        "tag == 1",
        "tag < 1",
        "ok == 1",
        "weight like 'a%'",
        "tag in [1]",
        "year in ['a']",
    ],
)
def test_given_a_value_of_another_type_than_declared_when_compiled_then_it_is_refused(bad: str) -> None:
    with pytest.raises(RequestFailed, match=r"declared|like on"):
        compiled(bad)


def test_given_a_long_chain_when_compiled_then_it_is_nested_no_deeper_than_its_logarithm() -> None:
    text = compiled({"free": {"in": list(range(1000))}})
    depth = deepest = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    assert deepest <= 11


def test_given_a_tenant_filter_when_combined_then_the_user_cannot_get_around_it() -> None:
    tenant = {"tenant": "a"}
    assert combine(tenant, None) == Compare("tenant", "==", "a")
    assert combine(tenant, "x == 1 or tenant != 'a'") == And(
        (Compare("tenant", "==", "a"), Or((Compare("x", "==", 1), Compare("tenant", "!=", "a"))))
    )
    assert compile_filter(combine(tenant, {"x": {"in": [1]}, "y": 2})).startswith('(metadata["tenant"] == "a" and ')


# What both parsers do with a literal: Lite knows these escapes alone, Milvus ends a literal at a raw line break.
LITERAL = re.compile(r'"(?:[^"\\\r\n]|\\["\\nrt])*"')


@given(st.text())
@settings(deadline=None)
def test_given_any_text_when_quoted_then_it_is_one_literal_that_reads_back_as_itself(text: str) -> None:
    quoted = quote(text)

    assert LITERAL.fullmatch(quoted)
    assert parse(f"x == {quoted}") == Compare("x", "==", text)


@given(st.text(alphabet="ab\"\\'\n%_ ()[]=", max_size=12), st.text(alphabet="ab\"\\'\n%_ ()[]=", max_size=12))
@settings(deadline=None)
def test_given_any_text_when_in_a_filter_then_nothing_outside_its_literal_changes(left: str, right: str) -> None:
    def skeleton(text: str) -> str:
        return LITERAL.sub("?", compiled({"tag": text, "free": {"in": [text, 1]}, "id": {"!=": text}}))

    assert skeleton(left) == skeleton(right)
    assert LITERAL.sub("?", ids_expression([left, right])) == "id in [?, ?]"


@given(st.text(max_size=40) | st.text(alphabet="abx=<>!()[]\"'\\.0123456789 andornotliketrue", max_size=40))
@settings(deadline=None)
def test_given_any_text_when_parsed_then_nothing_but_a_bad_request_is_raised(text: str) -> None:
    node = tree_or_none(text)
    assert node is None or isinstance(node, Compare | In | Like | Exists | And | Or | Not)


def tree_or_none(value: object) -> object:
    """The tree that compiles, or `None` where a bad request was the answer; anything else is raised."""
    try:
        compiled(value)
        return parse(value)
    except RequestFailed as error:
        if error.code is not ErrorCode.BAD_REQUEST:
            raise
        return None


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$and", "$or", "$not", "==", "in", "like", "year", "x"]), inner, max_size=3)
    ),
)


@given(json_like)
@settings(deadline=None)
def test_given_any_value_when_it_is_a_filter_then_nothing_but_a_bad_request_is_raised(value: object) -> None:
    node = tree_or_none(value)
    assert node is None or isinstance(value, str | dict)


@pytest.mark.parametrize(
    ("expression", "ours"),
    [
        ("year = 2024", "equal is =="),
        ("year == 2024 and not tag = 'x'", "equal is =="),
        ("year <> 2024", "unequal is !="),
        ("year IS NULL", "exists NAME"),
    ],
)
def test_given_a_comparison_of_sql_when_read_then_the_error_names_ours(expression, ours):
    with pytest.raises(RequestFailed, match=ours) as refused:
        parse(expression)
    assert refused.value.code == "bad_request"
