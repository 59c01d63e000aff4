"""Search and filters: the same answers from Milvus Lite and from a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Field, Hit, Row, Store, StoreConfig, combine
from clipfleet.store.compile import compile_filter
from clipfleet.store.filters import And, Compare, Exists, In, Like, Node, Not, Or, parse
from store.conftest import DIMENSION, FINGERPRINT
from store.test_contract_rows import FILTER_BREAKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FIELDS = (Field("year", "int"), Field("weight", "float"), Field("tag", "str"), Field("ok", "bool"))
TEXTS = [
    "",
    "a",
    "a/",
    "a/b",
    "a/b_c",
    "a/b%",
    "a/c",
    "b",
    "x\\",
    '"',
    "line\nbreak",
    "é",
    "🎉",
    "\ud7ff",
    "true",
    "2020",
]
TEXTS += [FILTER_BREAKER, "\x00", "\U0010ffff"]
NUMBERS: list[int | float] = [-3, -0.5, 0, 1, 1.5, 2019, 2020, 2020.5, 2021]


def rows() -> list[Row]:
    random = np.random.default_rng(7)
    made: list[Row] = []
    for number in range(60):
        metadata: dict[str, object] = {
            "year": [None, -3, 0, 1, 2019, 2020, 2021][number % 7],
            "weight": NUMBERS[number % 9] if number % 4 else None,
            "tag": TEXTS[number % len(TEXTS)] if number % 5 else None,
            "ok": [True, False, None][number % 3],
            "free": [*TEXTS, *NUMBERS, [1, "a"], {"a": 1}][number % (len(TEXTS) + len(NUMBERS) + 2)],
        }
        kept = {key: value for key, value in metadata.items() if value is not None or (key != "free" and number % 2)}
        if number % 10 == 9:
            kept.pop("free")
        made.append(Row(f"r{number}", random.standard_normal(DIMENSION).astype(np.float32), kept))
    return made


@pytest.fixture(scope="module")
def filled(uri: str) -> Iterator[tuple[Store, str]]:
    store = Store(StoreConfig(uri, consistency="Strong"))
    store.drop("filters")
    store.ensure_collection("filters", fingerprint=FINGERPRINT, dimension=DIMENSION, fields=FIELDS)
    assert not any(store.upsert("filters", rows()))
    yield store, "filters"
    store.drop("filters")
    store.close()


def hits(answer: list[list[Hit] | RequestFailed]) -> list[list[Hit]]:
    good = [found for found in answer if not isinstance(found, RequestFailed)]
    assert len(good) == len(answer)
    return good


def test_given_rows_when_searched_then_the_best_come_first_with_their_cosine(filled: tuple[Store, str]) -> None:
    store, name = filled
    query = np.random.default_rng(1).standard_normal((3, DIMENSION)).astype(np.float32)

    found = hits(store.search(name, query, fingerprint=FINGERPRINT, limit=60))

    for vector, ranked in zip(query, found, strict=True):
        cosine = {
            row.id: float(row.vector @ vector / np.linalg.norm(row.vector) / np.linalg.norm(vector)) for row in rows()
        }
        assert [hit.id for hit in ranked] == sorted(cosine, key=lambda row_id: -cosine[row_id])
        np.testing.assert_allclose([hit.score for hit in ranked], [cosine[hit.id] for hit in ranked], atol=1e-5)


def test_given_many_queries_when_searched_at_once_then_each_gets_its_solo_answer(filled: tuple[Store, str]) -> None:
    store, name = filled
    query = np.random.default_rng(2).standard_normal((64, DIMENSION)).astype(np.float32)

    together = hits(store.search(name, query, fingerprint=FINGERPRINT, limit=5, filter="year >= 0"))

    for position in (0, 31, 63):
        (solo,) = hits(
            store.search(name, query[position : position + 1], fingerprint=FINGERPRINT, limit=5, filter="year >= 0")
        )
        assert [hit.id for hit in solo] == [hit.id for hit in together[position]]


def test_given_output_fields_when_searched_then_only_they_come(filled: tuple[Store, str]) -> None:
    store, name = filled
    row = rows()[2]

    def metadata(fields: Sequence[str] | None) -> dict[str, object]:
        answer = store.search(name, row.vector[None], fingerprint=FINGERPRINT, limit=1, output_fields=fields)
        return hits(answer)[0][0].metadata

    assert metadata(None) == row.metadata
    assert metadata([]) == {}
    assert metadata(["year", "nothing"]) == {"year": row.metadata["year"]}


def test_given_a_bad_query_among_good_when_searched_then_it_alone_is_refused(filled: tuple[Store, str]) -> None:
    store, name = filled
    good = rows()[5].vector
    query = np.stack([good, good * 0, good * np.nan, good])

    answer = store.search(name, query, fingerprint=FINGERPRINT, limit=1)

    assert [found.code.value if isinstance(found, RequestFailed) else found[0].id for found in answer] == [
        "r5",
        "bad_request",
        "bad_request",
        "r5",
    ]


@pytest.mark.parametrize("limit", [0, -1, 16_385, True, 1.5, "3", None])
def test_given_a_limit_that_a_store_refuses_when_searched_then_ours_refuses_it(
    filled: tuple[Store, str], limit: int
) -> None:
    store, name = filled
    with pytest.raises(RequestFailed, match="1 to 16384") as error:
        store.search(name, rows()[0].vector[None], fingerprint=FINGERPRINT, limit=limit)
    assert error.value.code is ErrorCode.BAD_REQUEST


def test_given_the_largest_limit_when_searched_then_all_rows_come(filled: tuple[Store, str]) -> None:
    store, name = filled
    (found,) = hits(store.search(name, rows()[0].vector[None], fingerprint=FINGERPRINT, limit=16_384, output_fields=[]))
    assert len(found) == 60


@pytest.mark.parametrize("fields", ["year", [1], [["year"]], {"year": 1}])
def test_given_output_fields_that_are_no_list_of_keys_when_searched_then_it_is_a_bad_request(
    filled: tuple[Store, str], fields: list[str]
) -> None:
    store, name = filled
    with pytest.raises(RequestFailed, match="output_fields") as error:
        store.search(name, rows()[0].vector[None], fingerprint=FINGERPRINT, limit=1, output_fields=fields)
    assert error.value.code is ErrorCode.BAD_REQUEST


def test_given_hnsw_when_rows_are_fresh_replaced_and_flushed_then_each_is_its_own_best_hit(uri: str, name: str) -> None:
    store = Store(StoreConfig(uri, consistency="Strong", index="HNSW"))
    info = store.ensure_collection(name, fingerprint=FINGERPRINT, dimension=DIMENSION)
    assert info.index == "HNSW"
    vectors = np.random.default_rng(3).standard_normal((400, DIMENSION)).astype(np.float32)
    store.upsert(name, [Row(f"r{number}", vector) for number, vector in enumerate(-vectors)])

    for flushed in (False, True):
        store.upsert(name, [Row(f"r{number}", vector) for number, vector in enumerate(vectors)])
        if flushed:
            assert store.flush_quiet(0.0) == [name]
        found = hits(store.search(name, vectors[::40], fingerprint=FINGERPRINT, limit=2, output_fields=[]))
        assert [ranked[0].id for ranked in found] == [f"r{number}" for number in range(0, 400, 40)]
        assert all(ranked[0].score > 0.999 for ranked in found)
    assert store.count(name) == 400
    store.close()


def test_given_another_model_when_it_searches_then_it_is_refused(filled: tuple[Store, str]) -> None:
    store, name = filled
    with pytest.raises(RequestFailed, match=r"model-a.*model-b") as error:
        store.search(name, rows()[0].vector[None], fingerprint="model-b", limit=1)
    assert error.value.code is ErrorCode.MODEL_MISMATCH


def test_given_a_released_collection_when_searched_then_it_is_loaded(store: Store, collection: str) -> None:
    vector = np.ones(DIMENSION, np.float32)
    store.upsert(collection, [Row("a", vector)])
    store._connection.call("release_collection", collection)

    assert [hit.id for hit in hits(store.search(collection, vector[None], fingerprint=FINGERPRINT, limit=1))[0]] == [
        "a"
    ]
    store._connection.call("release_collection", collection)
    assert store.count(collection) == 1


@pytest.mark.parametrize("field", ["tag", "free", "id"])
def test_given_the_filter_breaker_when_it_is_a_value_then_it_matches_only_itself(
    store: Store, name: str, field: str
) -> None:
    store.ensure_collection(name, fingerprint=FINGERPRINT, dimension=DIMENSION, fields=FIELDS)
    vector = np.ones(DIMENSION, np.float32)
    twin = FILTER_BREAKER + "x"
    store.upsert(
        name,
        [Row(text, vector, {"tag": text, "free": text, "tenant": 2}) for text in (FILTER_BREAKER, twin)]
        + [Row("plain", vector, {"tag": "plain", "free": "plain", "tenant": 1})],
    )

    def found(given: object) -> set[str]:
        answer = store.search(name, vector[None], fingerprint=FINGERPRINT, limit=9, filter=given, output_fields=[])
        return {hit.id for hit in hits(answer)[0]}

    assert found({field: FILTER_BREAKER}) == {FILTER_BREAKER}
    assert found({field: {"in": [FILTER_BREAKER, "nothing"]}}) == {FILTER_BREAKER}
    assert found({field: {"!=": FILTER_BREAKER}}) == {twin, "plain"}
    prefix = FILTER_BREAKER.replace("\\", "\\\\").replace("%", "\\%") + "%"
    assert found({field: {"like": prefix}}) == {FILTER_BREAKER, twin}
    assert found(combine({"tenant": 1}, {field: FILTER_BREAKER})) == set()
    assert found(combine({"tenant": 1}, f"{field} == 'plain' or tenant == 2 or not {field} == 'plain'")) == {"plain"}


def test_given_a_thousand_values_when_filtered_then_both_stores_read_them(filled: tuple[Store, str]) -> None:
    store, name = filled
    many = {"$or": [{"free": {"in": list(range(495))}}, {"year": {"in": list(range(2010, 2505))}}]}
    answer = store.search(name, rows()[0].vector[None], fingerprint=FINGERPRINT, limit=60, filter=many)
    expected = {row.id for row in rows() if matches(parse(many), row, negated=False)}
    assert {hit.id for hit in hits(answer)[0]} == expected
    assert expected


# What filters mean, said a second time: `clipfleet.store.filters` in plain Python.
def matches(node: Node | None, row: Row, *, negated: bool) -> bool:
    match node:
        case None:
            return True
        case Not(item):
            return matches(item, row, negated=not negated)
        case And(items) | Or(items):
            every = isinstance(node, And) is not negated
            return (all if every else any)(matches(item, row, negated=negated) for item in items)
        case Compare(field, "!=", value):
            return matches(Compare(field, "==", value), row, negated=not negated)
        case _:
            return holds(node, row.id if node.field == "id" else row.metadata.get(node.field), negated=negated)


def holds(node: Compare | In | Like | Exists, value: object, *, negated: bool) -> bool:
    if value is None:
        return negated
    match node:
        case Exists(_):
            return not negated
        case In(_, values):
            return any(same(value, other) for other in values) is not negated
        case Compare(_, "==", other):
            return same(value, other) is not negated
        case Like(_, prefix):
            return isinstance(value, str) and value.startswith(prefix) is not negated
        case Compare(_, op, other):
            return ordered(value, op, other) is (not negated)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(value: object, other: object) -> bool:
    return value == other and is_number(value) == is_number(other)


def ordered(value: object, op: str, other: object) -> bool | None:
    """`None` where the two cannot be compared: false, and false when negated."""
    if not (is_number(value) and is_number(other)) and not (isinstance(value, str) and isinstance(other, str)):
        return None
    left, right = (
        (value.encode(), other.encode()) if isinstance(value, str) and isinstance(other, str) else (value, other)
    )
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]  # type: ignore[operator]


texts, numbers = st.sampled_from(TEXTS), st.sampled_from(NUMBERS)
values = {
    "year": numbers,
    "weight": numbers,
    "tag": texts,
    "ok": st.booleans(),
    "free": texts | numbers,
    "absent": texts | numbers,
    "id": st.sampled_from(["r1", "r22", "x"]),
}


def leaves(field: str) -> st.SearchStrategy[Node]:
    operand = values[field]
    ops = ["==", "!="] if field == "ok" else ["==", "!=", "<", "<=", ">", ">="]
    kinds: list[st.SearchStrategy[Node]] = [
        st.builds(Compare, st.just(field), st.sampled_from(ops), operand),
        st.builds(In, st.just(field), st.lists(operand, max_size=4).map(tuple)),
        st.builds(Exists, st.just(field)),
    ]
    if field in {"tag", "free", "absent", "id"}:
        kinds.append(st.builds(Like, st.just(field), texts))
    return st.one_of(kinds)


filters = st.recursive(
    st.sampled_from(sorted(values)).flatmap(leaves),
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple))
        | st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple))
    ),
    max_leaves=8,
)


def check(filled: tuple[Store, str], node: Node) -> None:
    store, name = filled
    expected = {row.id for row in rows() if matches(node, row, negated=False)}
    found = store._query(name, compile_filter(node, FIELDS), ["id"], limit=100)
    assert {row["id"] for row in found} == expected


@given(node=filters)
@example(node=Not(Compare("free", "<", 2020)))
@example(node=Not(Or((Like("free", "a/"), Like("absent", "\U0010ffff")))))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_given_any_filter_when_queried_then_the_rows_are_those_that_it_describes(
    filled: tuple[Store, str], node: Node
) -> None:
    check(filled, node)


@pytest.mark.fuzz
@pytest.mark.timeout(1200)
@given(node=filters)
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_given_very_many_filters_when_queried_then_the_rows_are_those_that_they_describe(
    filled: tuple[Store, str], node: Node
) -> None:
    check(filled, node)
