"""A collection behind an alias: a model changed without a moment in which two of them mix."""

from __future__ import annotations

import time
import uuid
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Field, Row, Store, StoreConfig, retrying
from store.conftest import DIMENSION, make

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair(store: Store) -> Iterator[tuple[str, str, str]]:
    """An alias that nobody has used, and two collections, of model-a and of model-b."""
    alias, *names = (f"{kind}_{uuid.uuid4().hex[:12]}" for kind in ("alias", "one", "two"))
    for name, model in zip(names, ("model-a", "model-b"), strict=True):
        make(store, name, model)
        store.upsert(name, [Row("same", unit(0), {"of": model})])
    yield alias, names[0], names[1]
    store._connection.call("drop_alias", alias)
    for name in names:
        store.drop(name)


def unit(axis: int) -> np.ndarray:
    made = np.zeros(DIMENSION, np.float32)
    made[axis] = 1
    return made


def found(store: Store, name: str, model: str) -> list[str]:
    (hits,) = store.search(name, unit(0)[None], fingerprint=model, limit=1)
    assert not isinstance(hits, RequestFailed)
    return [hit.metadata["of"] for hit in hits]


def test_given_an_alias_when_used_then_it_is_the_collection_that_it_stands_for(
    store: Store, pair: tuple[str, str, str]
) -> None:
    alias, one, _ = pair
    assert store.switch(alias, one) == ""

    info = store.ensure_collection(alias, fingerprint="model-a", dimension=DIMENSION)
    assert (info.name, info.fingerprint) == (one, "model-a")
    assert store.upsert(alias, [Row("more", unit(1))]) == [None]
    assert found(store, alias, "model-a") == ["model-a"]
    assert store.count(alias) == store.count(one) == 2
    assert [row.id for page in store.scan(alias) for row in page] == ["more", "same"]
    assert store.present(alias, ["more", "none"]) == {"more"}
    assert store.get(alias, ["none", "more"])[0] is None
    assert store.delete(alias, ids=["more"]) == 1
    assert store.count(one) == 1


def test_given_an_alias_switched_under_workers_when_they_go_on_then_no_vector_meets_another_model(
    store: Store, uri: str, pair: tuple[str, str, str]
) -> None:
    alias, one, two = pair
    store.switch(alias, one)
    worker = Store(StoreConfig(uri, consistency="Strong", recheck_s=1e9))
    worker.ensure_collection(alias, fingerprint="model-a", dimension=DIMENSION)
    assert found(worker, alias, "model-a") == ["model-a"]

    assert store.switch(alias, two) == one

    # What it knows of the alias is some seconds old: a search goes on with what it stood for, a row is for what it is.
    assert found(worker, alias, "model-a") == ["model-a"]
    for call in (
        lambda: worker.upsert(alias, [Row("late", unit(2))]),
        lambda: worker.search(alias, unit(0)[None], fingerprint="model-a", limit=1),
    ):
        with pytest.raises(RequestFailed, match=r"belongs to model model-b") as error:
            call()
        assert error.value.code is ErrorCode.MODEL_MISMATCH
    assert found(worker, alias, "model-b") == ["model-b"]
    assert store.count(two) == 1
    worker.close()


@pytest.mark.parametrize("dropped", [False, True])
def test_given_an_alias_switched_when_a_worker_goes_on_writing_then_each_row_is_in_what_it_stands_for(
    store: Store, uri: str, pair: tuple[str, str, str], *, dropped: bool
) -> None:
    alias, one, _ = pair
    store.switch(alias, one)
    worker = Store(StoreConfig(uri, recheck_s=1e9))
    worker.ensure_collection(alias, fingerprint="model-a", dimension=DIMENSION)
    assert worker.upsert(alias, [Row("early", unit(1))]) == [None]
    new = f"{one}_new"
    store.ensure_collection(new, fingerprint="model-a", dimension=DIMENSION, fields=[Field("year", "int")])
    assert store.switch(alias, new) == one
    if dropped:
        store.drop(one)

    written = retrying(
        lambda: worker.upsert(alias, [Row("late", unit(2), {"year": 1999}), Row("none", unit(3), {"year": "old"})]),
        deadline=time.monotonic() + 30,
        stop=Event(),
    )

    # By the columns of the new one, too.
    assert [error and error.code for error in written] == [None, ErrorCode.BAD_REQUEST]
    assert store.present(new, ["early", "late", "none"]) == {"late"}
    assert store.count(new, "year < 2000") == 1
    worker.close()
    store.switch(alias, pair[2])
    store.drop(new)


def test_given_an_old_collection_dropped_behind_its_alias_when_read_then_the_new_one_answers_at_once(
    store: Store, uri: str, pair: tuple[str, str, str]
) -> None:
    alias, one, two = pair
    store.switch(alias, one)
    worker = Store(StoreConfig(uri, consistency="Strong", recheck_s=1e9))
    assert found(worker, alias, "model-a") == ["model-a"]
    store.switch(alias, two)
    store.drop(one)

    # It still believes that the alias is the old one, and finds out by asking for it.
    assert found(worker, alias, "model-b") == ["model-b"]
    store.switch(alias, two)
    with pytest.raises(RequestFailed, match="belongs to model model-b"):
        found(worker, alias, "model-a")
    assert worker.count(alias) == 1
    worker.close()


def test_given_names_when_described_then_it_is_told_what_they_stand_for(
    store: Store, pair: tuple[str, str, str]
) -> None:
    alias, one, _ = pair
    assert store.describe(alias) is None
    store.switch(alias, one)
    described = [store.describe(name) for name in (alias, one)]
    assert [info and (info.name, info.fingerprint) for info in described] == [(one, "model-a")] * 2


def test_given_what_cannot_be_when_switched_then_it_is_refused(store: Store, pair: tuple[str, str, str]) -> None:
    alias, one, two = pair
    with pytest.raises(RequestFailed, match="is a collection itself"):
        store.switch(one, two)
    with pytest.raises(RequestFailed, match="no collection nowhere"):
        store.switch(alias, "nowhere")
    with pytest.raises(RequestFailed, match="no collection name"):
        store.switch("no name", one)
    store.switch(alias, one)
    assert store.switch(alias, one) == one


def test_given_an_alias_switched_by_another_process_when_rows_are_deleted_then_they_leave_what_it_stands_for_now(
    store: Store, uri: str, pair: tuple[str, str, str]
) -> None:
    alias, one, two = pair
    store.switch(alias, one)
    worker = Store(StoreConfig(uri, consistency="Strong"))
    try:
        assert worker.count(alias) == 1
        store.switch(alias, two)
        assert worker.delete(alias, ids=["same"]) == 1
        assert (store.count(one), store.count(two)) == (1, 0)
        # And what is asked before says what would be deleted
        for stands, rows in ((one, 1), (two, 0), (one, 1)):
            store.switch(alias, stands)
            assert worker.count(alias) == len(worker.present(alias, ["same"])) == rows
        assert worker.delete(alias, filter='of == "model-a"') == 1
        assert (store.count(one), store.count(two)) == (0, 0)
    finally:
        worker.close()


def test_given_an_alias_when_what_it_stands_for_is_dropped_then_that_is_refused(
    store: Store, pair: tuple[str, str, str]
) -> None:
    alias, one, two = pair
    store.switch(alias, one)
    with pytest.raises(RequestFailed, match=f"{alias} stands for it") as refused:
        store.drop(one)
    assert (refused.value.code, store.count(one)) == (ErrorCode.BAD_REQUEST, 1)
    store.switch(alias, two)
    for _twice in range(2):
        store.drop(one)
    assert store.describe(one) is None
