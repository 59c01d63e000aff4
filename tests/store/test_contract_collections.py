"""Collections that are not there, are listed, or were dropped by somebody else: the same on every store."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Row, Store, StoreConfig, StoreUnavailable
from store.conftest import DIMENSION, FINGERPRINT

if TYPE_CHECKING:
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
