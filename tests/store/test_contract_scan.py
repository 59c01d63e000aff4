"""A collection read from one end to the other: the same on Milvus Lite and on a server."""

from __future__ import annotations

import random

import numpy as np
import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Row, Store, StoreUnavailable
from clipfleet.store import scan as scan_module
from clipfleet.store.connection import Refused
from clipfleet.store.retry import Verdict
from store.conftest import DIMENSION

ODD = ['quo"te', "back\\slash", "line\nbreak", "tab\t", "日本", "🦊", "é", "e\u0301", " blank", "%", "Z", "a", "~"]


def rows_of(ids: list[str]) -> list[Row]:
    vectors = np.random.default_rng(5).normal(size=(len(ids), DIMENSION)).astype(np.float32)
    return [Row(row_id, vector, {"n": n}) for n, (row_id, vector) in enumerate(zip(ids, vectors, strict=True))]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "PAGE_ROWS", 100)


def test_given_rows_in_any_order_when_scanned_then_each_comes_once_by_its_id(
    store: Store, collection: str, small_pages: None
) -> None:
    rows = rows_of([*ODD, *(f"{head}{n}" for n in range(40) for head in ("a", "Z", "é", "日", "🦊", '"', "\\"))])
    random.Random(5).shuffle(rows)
    store.upsert(collection, rows[:150])
    store._connection.call("flush", collection)
    store.upsert(collection, rows[100:])
    store.upsert(collection, rows[:20])

    pages = list(store.scan(collection))

    expected = sorted(rows, key=lambda row: row.id.encode())
    scanned = [row for page in pages for row in page]
    assert [row.id for row in scanned] == [row.id for row in expected]
    assert all(np.array_equal(row.vector, other.vector) for row, other in zip(scanned, expected, strict=True))
    assert [row.metadata for row in scanned] == [row.metadata for row in expected]
    assert len(pages) > 1
    assert store.count(collection) == len(rows)


def test_given_an_id_when_scanned_from_behind_it_then_the_rest_comes(
    store: Store, collection: str, small_pages: None
) -> None:
    rows = rows_of(ODD)
    store.upsert(collection, rows)
    ids = sorted(ODD, key=str.encode)
    for after in ids:
        rest = [row.id for page in store.scan(collection, after=after) for row in page]
        assert rest == ids[ids.index(after) + 1 :]


def test_given_no_rows_or_no_collection_when_scanned_then_nothing_or_a_verdict_comes(
    store: Store, collection: str
) -> None:
    assert list(store.scan(collection)) == []
    with pytest.raises(RequestFailed, match="no collection nowhere") as error:
        list(store.scan("nowhere"))
    assert error.value.code is ErrorCode.BAD_REQUEST


def entity(row_id: str) -> dict[str, object]:
    return {"id": row_id, "vector": [1.0], "metadata": {}}


def refused(verdict: Verdict) -> Refused:
    return Refused(verdict, ValueError("no"))


def test_given_answers_above_the_message_limit_when_scanned_then_fewer_rows_are_asked_for() -> None:
    left = [entity(f"{n:02}") for n in range(10)]
    asked = []

    def query(request: dict) -> list:
        if "iterator" not in request:
            return [{"count(*)": 10}]
        asked.append(request["limit"])
        if request["limit"] > 15:
            raise refused(Verdict.SPLIT)
        found, left[:] = left[: request["limit"]], left[request["limit"] :]
        return found

    assert [len(page) for page in scan_module.scan(query)] == [10]
    assert asked == [1000, 250, 62, 15, 15]


def test_given_one_row_above_the_limit_when_scanned_then_it_is_named() -> None:
    def query(request: dict) -> list:
        if "iterator" in request:
            raise refused(Verdict.SPLIT)
        return [{"count(*)": 1}]

    with pytest.raises(RequestFailed, match="the row after 'x' is too large"):
        list(scan_module.scan(query, "x"))


def test_given_rows_in_no_order_when_scanned_then_it_is_an_error_and_not_a_silent_loss() -> None:
    def query(request: dict) -> list:
        return [entity("b"), entity("a")] if "iterator" in request else [{"count(*)": 2}]

    with pytest.raises(RequestFailed, match="some would be missed"):
        list(scan_module.scan(query))


def test_given_a_store_that_is_away_for_a_moment_when_scanned_then_it_is_asked_again() -> None:
    answers = [StoreUnavailable("away", 0.01), [{"count(*)": 1}], StoreUnavailable("away", 0.01), [entity("a")], []]

    def query(_: dict) -> list:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert [row.id for page in scan_module.scan(query) for row in page] == ["a"]
