"""Rows in and rows out: the same on Milvus Lite and on a server."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Field, Row, Store, StoreConfig, StoreUnavailable, sketches
from store.conftest import DIMENSION, FINGERPRINT

CASES = Path(__file__).parent.parent / "cases" / "text.jsonl"
FILTER_BREAKER = next(
    case["text"] for case in map(json.loads, CASES.read_text().splitlines()) if case["id"] == "filter_breaker"
)


def codes(outcomes: list[RequestFailed | None]) -> list[str | None]:
    return [None if outcome is None else outcome.code.value for outcome in outcomes]


def refused(error: pytest.ExceptionInfo[RequestFailed]) -> ErrorCode:
    return error.value.code


def test_given_a_collection_when_ensured_again_then_nothing_changes(store: Store, name: str) -> None:
    fields = (Field("year", "int"), Field("tag", "str"))
    made = store.ensure_collection(name, fingerprint="f", dimension=DIMENSION, fields=fields)
    other = Store(StoreConfig(store._config.uri))
    again = other.ensure_collection(name, fingerprint="f", dimension=DIMENSION, fields=fields[:1])
    other.close()

    assert made == again
    assert (made.fingerprint, made.dimension, made.fields) == ("f", DIMENSION, fields)


def test_given_a_collection_when_another_model_asks_then_both_fingerprints_are_named(
    store: Store, collection: str
) -> None:
    with pytest.raises(RequestFailed, match=r"model-a.*model-b") as error:
        store.ensure_collection(collection, fingerprint="model-b", dimension=DIMENSION)
    assert refused(error) is ErrorCode.MODEL_MISMATCH

    with pytest.raises(RequestFailed) as error:
        store.ensure_collection(collection, fingerprint=FINGERPRINT, dimension=DIMENSION + 1)
    assert refused(error) is ErrorCode.MODEL_MISMATCH

    with pytest.raises(RequestFailed, match="declares no fields, not year:int") as error:
        store.ensure_collection(collection, fingerprint=FINGERPRINT, dimension=DIMENSION, fields=[Field("year", "int")])
    assert refused(error) is ErrorCode.BAD_REQUEST


def test_given_a_collection_of_another_program_when_ensured_then_it_is_not_touched(store: Store, name: str) -> None:
    raw = store._connection
    schema = raw.schema("somebody else's")
    from pymilvus import DataType

    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=DIMENSION)
    raw.call("create_collection", name, schema=schema)

    with pytest.raises(RequestFailed, match="no clipfleet model") as error:
        store.ensure_collection(name, fingerprint="f", dimension=DIMENSION)

    assert refused(error) is ErrorCode.MODEL_MISMATCH


def test_given_two_workers_when_both_make_it_at_once_then_both_can_write(uri: str, name: str) -> None:
    barrier = Barrier(4)
    results: list[object] = []

    def make(number: int) -> None:
        mine = Store(StoreConfig(uri))
        mine.probe()
        barrier.wait()
        try:
            mine.ensure_collection(name, fingerprint="f", dimension=DIMENSION)
            results.append(mine.upsert(name, [Row(f"r{number}", np.ones(DIMENSION, np.float32))]))
        except (RequestFailed, StoreUnavailable) as error:
            results.append(error)
        finally:
            mine.close()

    threads = [Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [[None]] * 4
    reader = Store(StoreConfig(uri))
    assert reader.count(name) == 4
    reader.close()


def test_given_two_models_when_both_make_it_at_once_then_one_is_refused(uri: str, name: str) -> None:
    barrier = Barrier(2)
    results: dict[str, object] = {}

    def make(model: str) -> None:
        mine = Store(StoreConfig(uri))
        mine.probe()
        barrier.wait()
        try:
            results[model] = mine.ensure_collection(name, fingerprint=model, dimension=DIMENSION).fingerprint
        except RequestFailed as error:
            results[model] = error.code
        finally:
            mine.close()

    threads = [Thread(target=make, args=(model,)) for model in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results in ({"a": "a", "b": ErrorCode.MODEL_MISMATCH}, {"a": ErrorCode.MODEL_MISMATCH, "b": "b"})


def test_given_a_row_when_upserted_again_then_it_is_replaced_whole(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    assert store.upsert(collection, [Row("a", vector, {"old": 1, "kept": 1})]) == [None]
    assert store.upsert(collection, [Row("a", -vector, {"kept": 2})]) == [None]

    (row,) = store.get(collection, ["a"])
    assert row is not None
    assert row.metadata == {"kept": 2}
    np.testing.assert_array_equal(row.vector, -vector)
    assert store.count(collection) == 1


def test_given_one_id_twice_in_a_batch_when_upserted_then_the_last_wins(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    outcomes = store.upsert(
        collection,
        [Row("a", vector, {"n": 1}), Row("b", vector), Row("a", -vector, {"n": 2}), Row("a", vector * np.nan)],
    )

    assert codes(outcomes) == [None, None, None, "bad_request"]
    (row,) = store.get(collection, ["a"])
    assert row is not None
    assert row.metadata == {"n": 2}
    assert store.count(collection) == 2


def test_given_bad_rows_among_good_when_upserted_then_only_they_fail(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    infinite = vector.copy()
    infinite[0] = np.inf
    rows = [
        Row("good-1", vector),
        Row("nan", vector * np.nan),
        Row("inf", infinite),
        Row("zero", vector * 0),
        Row("long", np.ones(DIMENSION + 1, np.float32)),
        Row("", vector),
        Row("é" * 513, vector),
        Row("\ud800", vector),
        Row("bytes", vector, {"raw": b"x"}),
        Row("huge", vector, {"n": 2**70}),
        Row("nan-json", vector, {"n": float("nan")}),
        Row("key", vector, {1: 2}),
        Row("good-2", vector),
    ]

    outcomes = codes(store.upsert(collection, rows))

    assert outcomes == [None, *["bad_request"] * 3, "bad_shape", *["bad_request"] * 7, None]
    assert store.count(collection) == 2


def test_given_metadata_of_64_kib_when_upserted_then_it_fits_and_one_byte_more_does_not(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    frame = len(json.dumps({"t": ""}, separators=(",", ":")))
    fits, over = {"t": "x" * (65_536 - frame)}, {"t": "x" * (65_537 - frame)}

    assert codes(store.upsert(collection, [Row("fits", vector, fits), Row("over", vector, over)])) == [
        None,
        "too_large",
    ]

    rows = store.get(collection, ["fits", "over"])
    assert rows[1] is None
    assert rows[0] is not None
    assert rows[0].metadata == fits


@pytest.mark.parametrize(
    "metadata",
    [
        {"text": FILTER_BREAKER},
        {"a": None, "b": True, "c": False, "d": 1, "e": 1.0, "f": -0.5, "g": [1, [2, {"h": []}]], "i": {}},
        {"big": 2**63 - 1, "bigger": 2**64 - 1, "low": -(2**63), "tiny": 5e-324, "large": 1.7e308},
        {"": 1, "a.b": 2, 'q"\\': 3, "ключ": "значение 🎉", "line\n\ttab": "\u2028\u200b\x01\x7f\x00"},
        {"id": "x", "vector": [1, 2], "metadata": {"metadata": 1}},
        {},
    ],
)
def test_given_metadata_when_written_then_it_comes_back_unchanged(
    store: Store, collection: str, vector: np.ndarray, metadata: dict[str, object]
) -> None:
    assert store.upsert(collection, [Row("a", vector, metadata)]) == [None]

    (row,) = store.get(collection, ["a"])
    assert row is not None
    assert json.dumps(row.metadata) == json.dumps(metadata)
    ((hit,),) = store.search(collection, vector[None], fingerprint=FINGERPRINT, limit=1)
    assert json.dumps(hit.metadata) == json.dumps(metadata)


@pytest.mark.parametrize(
    "row_id", ["a/b c.jpg", FILTER_BREAKER, "line\nbreak\ttab'\\", "\x00", "é" * 512, "ид 🎉", "0"]
)
def test_given_an_odd_id_when_written_then_it_is_found_and_deleted_alone(
    store: Store, collection: str, vector: np.ndarray, row_id: str
) -> None:
    assert store.upsert(collection, [Row(row_id, vector), Row("other", vector)]) == [None, None]

    found = store.get(collection, [row_id, "nothing"])

    assert [row and row.id for row in found] == [row_id, None]
    assert store.delete(collection, ids=[row_id]) == 1
    assert [row and row.id for row in store.get(collection, [row_id, "other"])] == [None, "other"]


def test_given_more_than_64_mib_when_upserted_then_it_is_sent_in_pieces(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    blob = "x" * 65_000
    rows = [Row(f"r{number}", vector, {"blob": blob}) for number in range(1100)]

    assert store.upsert(collection, rows) == [None] * 1100

    assert store.count(collection) == 1100
    hits = store.search(collection, np.stack([vector] * 2), fingerprint=FINGERPRINT, limit=700)
    assert [len(found) for found in hits if not isinstance(found, RequestFailed)] == [700, 700]


def test_given_rows_when_deleted_then_the_number_that_was_there_is_told(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    store.upsert(collection, [Row(f"r{number}", vector, {"n": number}) for number in range(600)])

    assert store.delete(collection, ids=["r0", "r1", "r0", "not there"]) == 2
    assert store.delete(collection, filter={"n": {"<": 300}}) == 298
    assert store.delete(collection, filter="n < 300") == 0
    assert store.count(collection) == 300
    for given in ({}, {"ids": ["a"], "filter": "n == 1"}, {"filter": {}}, {"filter": "  "}):
        with pytest.raises(RequestFailed) as error:
            store.delete(collection, **given)
        assert refused(error) is ErrorCode.BAD_REQUEST


def test_given_ids_when_discarded_then_it_is_told_which_were_there(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    store.upsert(collection, [Row(f"r{number}", vector) for number in range(600)])

    gone = store.discard(collection, [f"r{number}" for number in range(100, 700)])

    assert gone == {f"r{number}" for number in range(100, 600)}
    assert store.count(collection) == 100


def test_given_a_limit_when_deleted_by_filter_then_no_more_go_and_a_short_count_says_that_none_is_left(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    store.upsert(collection, [Row(f"r{number}", vector, {"n": number}) for number in range(3_000)])
    assert store.count(collection, "n < 2500") == 2_500

    counts = [store.delete(collection, filter="n < 2500", limit=1_100) for _ in range(4)]

    assert counts == [1_100, 1_100, 300, 0]
    assert (store.count(collection, "n >= 2500"), store.count(collection)) == (500, 500)
    for limit in (0, -1, 100_001, True, "5"):
        with pytest.raises(RequestFailed, match="limit is"):
            store.delete(collection, filter="n < 2500", limit=limit)  # type: ignore[arg-type]
    with pytest.raises(RequestFailed, match="ids or a filter"):
        store.delete(collection, ids=["r1"], limit=5)


def test_given_nothing_to_write_or_find_then_nothing_is_asked(store: Store, collection: str) -> None:
    assert store.upsert(collection, []) == []
    assert store.get(collection, []) == []
    assert store.delete(collection, ids=[]) == 0
    assert store.search(collection, np.empty((0, DIMENSION), np.float32), fingerprint=FINGERPRINT, limit=1) == []


def test_given_what_was_noted_of_rows_when_asked_then_missing_and_changed_ones_are_told(
    store: Store, collection: str
) -> None:
    chance = np.random.default_rng(3)
    vectors = chance.standard_normal((300, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    noted = dict(zip((f"{number:03}" for number in range(300)), sketches(list(vectors)), strict=True))
    rows = [Row(id_, vector) for id_, vector in zip(noted, vectors, strict=True)]
    assert not any(store.upsert(collection, rows))
    assert store.holds(collection, noted) == dict.fromkeys(noted, True)
    # Somebody else writes under one id, and another row goes
    assert store.upsert(collection, [Row("007", vectors[8])]) == [None]
    assert store.delete(collection, ids=["009"]) == 1
    told = store.holds(collection, noted | {"010": "", "none": "", "never": noted["001"]})
    assert {id_ for id_, right in told.items() if not right} == {"007"}
    assert {*noted, "none", "never"} - told.keys() == {"009", "none", "never"}
