"""A service adds its tenant to whatever its user asks; no user's filter gets around it, on a real Milvus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Field, Row, Store, StoreConfig, combine
from clipfleet.store.lite import LiteServer

if TYPE_CHECKING:
    from collections.abc import Iterator

TENANT = {"tenant": "a"}
# Ids that would end a literal, if they could.
IDS = ['a"', "a\\", 'x" or id != "', "a'", "a\n", "{id}", "a]", "é\u2028", 'a\\" or 1==1 or id == \\"']


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        made = Store(StoreConfig(server.uri, consistency="Strong"))
        for name, fields in (("declared", (Field("tenant", "str"), Field("n", "int"))), ("free", ())):
            made.ensure_collection(name, fingerprint="f", dimension=4, fields=fields)
            assert made.upsert(name, list(rows())) == [None] * (40 + len(IDS))
        yield made
        made.close()


def rows() -> Iterator[Row]:
    vector = np.ones(4, np.float32)
    for n in range(40):
        metadata: dict[str, Any] = {"tenant": "ab"[n % 2], "n": n, "tag": "x"}
        if n % 5 == 0:
            metadata |= {'odd" key': 1, "tenant ": "a", "Tenant": "a"}
        yield Row(f"row{n}", vector, metadata)
    for number, row_id in enumerate(IDS):
        yield Row(row_id, vector, {"tenant": "b", "n": 100 + number})


def found(store: Store, collection: str, filtered: Any) -> set[str] | None:
    """The tenants of the hits, or ``None`` where the filter was refused."""
    try:
        (hits,) = store.search(
            collection,
            np.ones((1, 4), np.float32),
            fingerprint="f",
            limit=200,
            filter=filtered,
            output_fields=["tenant"],
        )
    except RequestFailed as error:
        refused_as(error, ErrorCode.BAD_REQUEST)
        return None
    assert isinstance(hits, list)
    return {hit.metadata["tenant"] for hit in hits}


# What they hope for: that the text is glued to another one, or read by a parser with other ideas than ours.
TEXTS = [
    'tenant == "b"',
    "x == 1 or tenant == 'b'",
    "n >= 0) or (n >= 0",
    'n >= 0) or (tenant != "a"',
    "n >= 0 or n < 0",
    "not tenant == 'a'",
    "not (tenant == 'a' and n < 0)",
    'tag == "x" or true',
    'tag == "x\\" or 1 == 1 or tag == \\""',
    'tag == "x\\\\" or n >= 0',
    "tag == 'x\" or 1==1 or tag == \"'",
    "n >= 0 // ",
    "n >= 0 # and",
    "n >= 0 -- and",
    "n >= 0; n >= 0",
    "n >= 0\0or n >= 0",
    "n >= 0\nor n >= 0",
    "n >= 0 \u2028 or n >= 0",
    "1 == 1",
    "true",
    "n >= 0 or exists tenant",
    "exists tenant or not exists tenant",
    "tenant like '%'",
    "tenant like 'b%' or n like '%'",
    "tenant in ['a', 'b']",
    "tenant not in []",
    "metadata['tenant'] == 'b' or n >= 0",
    "metadata['odd\" key'] == 1",
    "metadata['tenant\"] == \"b\" or metadata[\"tenant'] == 'b'",
    'metadata["tenant\\"] != \\""] == 1',
    "id != ''",
    "id >= '' or vector >= 0",
    "vector == 1",
    "metadata == 1",
    "tenant__set == true or tenant__set == false or n >= 0",
    "$meta['tenant'] == 'b'",
    "json_contains(metadata, 'b') or n >= 0",
    "tenant == {tenant}",
    "n >= -9223372036854775807",
    "n < 1e308 or n > -1e308",
    "n >= 0 " + "or n >= 0 " * 900,
    "((((((((((n >= 0))))))))))",
    "NOT NOT NOT n < 0",
    "tenant == 'a' || tenant == 'b'",
    "n >= 0 && tenant != 'a' || n >= 0",
    "tag == '" + "\\" * 7 + "' or n >= 0",
]
MAPPINGS: list[Any] = [
    {"tenant": "b"},
    {"tenant": {"!=": "a"}},
    {"$or": [{"n": {">=": 0}}, {"tenant": "b"}]},
    {"$not": {"tenant": "a"}},
    {"$not": {"$and": [{"tenant": "a"}, {"n": {"<": 0}}]}},
    {"$or": ["n >= 0", "tenant == 'b'"]},
    {'tenant"] == "b" or metadata["tenant': "b"},
    {"tenant": {"in": ["b", 'a"] or tenant in ["b']}},
    {"tenant": {'== "b" or tenant ==': "b"}},
    {"tag": 'x" or tenant == "b'},
    {"tag": "x\\"},
    {"tenant": {"like": "%"}},
    {"n": {">=": 0}, "$or": [{"n": {">=": 0}}]},
    {"$and": [{"$or": [{"tenant": "b"}, {"tenant": "a"}]}]},
    {"id": {"!=": ""}},
    {"vector": {"exists": True}},
]


@pytest.mark.parametrize("collection", ["declared", "free"])
def test_given_attacks_when_a_service_has_added_its_tenant_then_no_other_tenants_row_is_found(
    store: Store, collection: str
) -> None:
    assert found(store, collection, None) == {"a", "b"}
    assert found(store, collection, TENANT) == {"a"}
    answers = []
    for attack in [*TEXTS, *MAPPINGS]:
        for filtered in (combine(TENANT, attack), {"$and": [TENANT, attack]}) if parses(attack) else ():
            tenants = found(store, collection, filtered)
            assert tenants is None or tenants <= {"a"}, (attack, tenants)
            answers.append(tenants)
    # They were tried, and not all for nothing: harmless ones still find the tenant's own rows.
    assert answers.count({"a"}) >= 30
    assert len(answers) - answers.count(None) >= 60


@pytest.mark.parametrize(
    "attack", [text for text in TEXTS if ")" in text and "(" in text and text.index(")") < text.index("(")]
)
def test_given_a_text_that_would_close_anothers_bracket_then_it_is_no_filter_by_itself(attack: str) -> None:
    assert not parses(attack)


def parses(attack: Any) -> bool:
    try:
        combine(TENANT, attack)
    except RequestFailed as error:
        return refused_as(error, ErrorCode.BAD_REQUEST)
    return True


def refused_as(error: RequestFailed, code: ErrorCode) -> bool:
    """Never true; but the refusal must be of that kind."""
    assert error.code is code, error
    return False


hostile_text = st.text(alphabet="ab\"\\'\n\r\t\0%_ ()[]={}$;#/-\u2028\u00e9\U0010ffff", max_size=14)


@given(hostile_text, st.sampled_from(["declared", "free"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_given_any_value_when_it_is_compared_with_then_it_is_only_a_value(
    store: Store, value: str, collection: str
) -> None:
    """Nobody has that tag, so nobody is found by it, and everybody by its opposite, within the tenant."""
    assert not found(store, collection, combine(TENANT, {"tag": f"_{value}"}))
    assert found(store, collection, combine(TENANT, {"tag": {"!=": f"_{value}"}})) == {"a"}
    assert found(store, collection, combine(TENANT, {"tenant": {"!=": value}, "n": {">=": 0}})) in ({"a"}, set())


@given(st.text(max_size=60) | hostile_text)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_given_any_expression_when_a_service_has_added_its_tenant_then_it_stays_within(store: Store, text: str) -> None:
    for attack in (
        text,
        f'n >= 0 {text} or tenant == "b"',
        f'tag == "{text}" or n >= 0',
        f"n >= 0 or tag like '{text}%'",
    ):
        if parses(attack):
            tenants = found(store, "free", combine(TENANT, attack))
            assert tenants is None or tenants <= {"a"}, attack


def test_given_ids_that_would_end_a_literal_when_rows_are_read_and_deleted_then_it_is_those_rows_alone(
    store: Store,
) -> None:
    before = store.count("free")
    assert [row.id for row in store.get("free", IDS) if row] == IDS
    for row_id in IDS:
        assert store.delete("free", ids=[row_id]) == 1, row_id
    assert store.count("free") == before - len(IDS)
    assert store.delete("free", ids=['row1" or id != "', 'row1"] or id in ["row2']) == 0
    assert store.delete("free", filter=combine(TENANT, {"tag": 'x" or tenant == "b'})) == 0
    assert store.count("free") == before - len(IDS)
    assert store.delete("free", filter=combine(TENANT, "tenant == 'b' or n < 10")) == 5
