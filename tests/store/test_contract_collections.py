"""Collections that are not there, are listed, or were dropped by somebody else: the same on every store."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Field, Row, Store, StoreConfig, StoreUnavailable, retrying
from store.conftest import DIMENSION, FINGERPRINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


def test_given_no_such_collection_when_used_then_the_refusal_names_it(store: Store, vector: np.ndarray) -> None:
    uses = (
        lambda: store.search("nowhere", vector[None], fingerprint="f", limit=1),
        lambda: store.count("nowhere"),
        lambda: store.get("nowhere", ["a"]),
        lambda: store.delete("nowhere", ids=["a"]),
    )
    for use in uses:
        with pytest.raises(RequestFailed, match="no collection nowhere") as error:
            use()
        assert error.value.code is ErrorCode.BAD_REQUEST
    with pytest.raises(LookupError):
        store.upsert("nowhere", [Row("a", vector)])
    store.drop("nowhere")


def test_given_collections_when_listed_then_each_has_its_model_and_rows(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    store.upsert(collection, [Row("a", vector)])

    (info,) = [info for info in store.list_collections() if info.name == collection]

    assert (info.fingerprint, info.dimension, info.rows) == (FINGERPRINT, DIMENSION, 1)
    assert store.probe().startswith(("milvus_lite", "v2."))


def test_given_a_collection_dropped_elsewhere_when_written_to_then_it_is_made_anew(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    other = Store(StoreConfig(store._config.uri))
    other.drop(collection)
    other.close()

    with pytest.raises(StoreUnavailable, match="gone"):
        store.upsert(collection, [Row("a", vector)])

    assert store.upsert(collection, [Row("a", vector)]) == [None]
    assert store.count(collection) == 1


@pytest.mark.parametrize("dropped", ["here", "elsewhere"])
def test_given_a_collection_that_was_dropped_when_made_anew_then_it_has_an_index_again(
    store: Store, collection: str, vector: np.ndarray, dropped: str
) -> None:
    other = Store(StoreConfig(store._config.uri))
    before = other.describe(collection)
    (store if dropped == "here" else other).drop(collection)
    if dropped == "elsewhere":
        with pytest.raises(StoreUnavailable, match="gone"):
            store.upsert(collection, [Row("a", vector)])

    store.ensure_collection(collection, fingerprint=FINGERPRINT, dimension=DIMENSION)

    assert other.describe(collection) == before
    assert before is not None
    assert before.index
    other.close()


def test_given_a_collection_dropped_by_itself_or_elsewhere_when_made_anew_then_it_has_its_index_again(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    other = Store(StoreConfig(store._config.uri))
    for dropping in (store, other):
        dropping.drop(collection)

        store.ensure_collection(collection, fingerprint=FINGERPRINT, dimension=DIMENSION)

        with suppress(StoreUnavailable):  # it is gone
            store.upsert(collection, [Row("a", vector)])
        assert store.upsert(collection, [Row("a", vector)]) == [None]
        assert store._connection.call("list_indexes", collection) == ["vector"]
    other.close()


def test_given_a_collection_made_anew_for_another_model_when_written_to_then_it_is_refused(
    store: Store, collection: str, vector: np.ndarray
) -> None:
    other = Store(StoreConfig(store._config.uri))
    other.drop(collection)
    other.ensure_collection(collection, fingerprint="model-b", dimension=DIMENSION * 2)
    other.close()

    with pytest.raises(RequestFailed, match="model-b") as error:
        store.upsert(collection, [Row("a", vector)])

    assert error.value.code is ErrorCode.MODEL_MISMATCH


@pytest.fixture
def elsewhere(store: Store) -> Iterator[Store]:
    """A store as another process has it: pymilvus keeps what it knows of collections by the address."""
    made = Store(StoreConfig(store._config.uri.replace("127.0.0.1", "localhost")))
    yield made
    made.close()


def test_given_a_collection_made_anew_with_other_columns_when_written_to_then_no_row_is_at_fault(
    uri: str, elsewhere: Store, name: str, vector: np.ndarray
) -> None:
    store = Store(StoreConfig(uri, recheck_s=600.0))
    rows = [Row("a", vector, {"year": 1990}), Row("b", vector, {"year": 1991})]
    for fields in ([Field("year", "int")], [], [Field("year", "int"), Field("kind", "str")]):
        elsewhere.drop(name)
        elsewhere.ensure_collection(name, fingerprint=FINGERPRINT, dimension=DIMENSION, fields=fields)

        def write() -> list[RequestFailed | None]:
            store.ensure_collection(name, fingerprint=FINGERPRINT, dimension=DIMENSION)
            return store.upsert(name, rows)

        assert retrying(write, deadline=time.monotonic() + 30, stop=Event()) == [None, None]
        assert elsewhere.count(name, "year == 1990") == 1
    store.close()


def test_given_a_collection_made_anew_when_searched_then_it_is_what_it_is_by_now(
    uri: str, elsewhere: Store, name: str, vector: np.ndarray
) -> None:
    store = Store(StoreConfig(uri, recheck_s=600.0, consistency="Strong"))
    elsewhere.ensure_collection(name, fingerprint="model-b", dimension=DIMENSION, fields=[Field("year", "int")])
    with pytest.raises(RequestFailed, match="model-b"):
        store.search(name, vector[None], fingerprint=FINGERPRINT, limit=1)
    for fields in ([Field("year", "int")], []):
        elsewhere.drop(name)
        elsewhere.ensure_collection(name, fingerprint=FINGERPRINT, dimension=DIMENSION, fields=fields)
        elsewhere.upsert(name, [Row("a", vector, {"year": 1990})])

        (hits,) = store.search(name, vector[None], fingerprint=FINGERPRINT, limit=1, filter="year == 1990")

        assert not isinstance(hits, RequestFailed)
        assert [hit.id for hit in hits] == ["a"]
    store.close()
