"""What the store makes of answers that a healthy Milvus never gives: injected where pymilvus is called."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Hit, Row, Store, StoreConfig, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOLD = '{"v": 1, "fingerprint": "f", "dimension": 2, "metric": "COSINE", "fields": {}}'
VECTOR = np.array([1, 0], np.float32)


class MilvusException(Exception):
    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class TooLarge(Exception):
    def code(self) -> Any:
        return type("StatusCode", (), {"name": "RESOURCE_EXHAUSTED"})

    def __str__(self) -> str:
        return "received message larger than max"


class Milvus:
    """A client whose collection `c` exists; a test replaces the one method that it is about."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written: set[str] = set()
        self.told = TOLD

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, timeout: float, **kwargs: Any) -> Any:
            assert timeout > 0, "a hung Milvus would block for ever"
            self.calls.append(method)
            return getattr(self, f"on_{method}")(*args, **kwargs)

        return call

    def on_get_server_version(self) -> str:
        return "v2.3.5"

    def on_describe_collection(self, name: str) -> Any:
        return {"properties": {"clipfleet": self.told}, "fields": [{"name": "vector", "params": {"dim": 2}}]}

    def on_list_indexes(self, name: str) -> Any:
        return ["vector"]

    def on_describe_index(self, name: str, field: str) -> Any:
        return {"index_type": "FLAT"}

    def on_load_collection(self, name: str) -> Any:
        return None

    def on_upsert(self, name: str, rows: Sequence[dict[str, Any]]) -> Any:
        self.written |= {row["id"] for row in rows}
        return {"upsert_count": len(rows)}

    def on_search(self, name: str, data: Sequence[Any], **_: Any) -> Any:
        return [[{"id": "a", "distance": 1.00001, "entity": {"metadata": {"n": 1}}}] for _ in data]


@pytest.fixture
def milvus() -> Milvus:
    return Milvus()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def store(milvus: Milvus, now: list[float], monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store(StoreConfig("http://127.0.0.1:1"), clock=lambda: now[0])
    monkeypatch.setattr(made._connection, "_connected", lambda: milvus)
    made.ensure_collection("c", fingerprint="f", dimension=2)
    return made


def rows(count: int) -> list[Row]:
    return [Row(f"r{number}", VECTOR) for number in range(count)]


def raising(error: Exception) -> Callable[..., Any]:
    def on_call(*_: Any, **__: Any) -> Any:
        raise error

    return on_call


def search(store: Store, count: int = 1) -> list[list[Hit] | RequestFailed]:
    return store.search("c", np.stack([VECTOR] * count), fingerprint="f", limit=3)


def test_given_a_row_that_milvus_refuses_when_upserted_then_it_fails_alone(store: Store, milvus: Milvus) -> None:
    take = milvus.on_upsert

    def on_upsert(name: str, batch: Sequence[dict[str, Any]]) -> Any:
        if any(row["id"] == "r70" for row in batch):
            raise MilvusException(1100, "invalid parameter: odd row")
        return take(name, batch)

    milvus.on_upsert = on_upsert  # type: ignore[method-assign]
    outcomes = store.upsert("c", rows(200))

    assert [position for position, outcome in enumerate(outcomes) if outcome is not None] == [70]
    assert outcomes[70] is not None
    assert outcomes[70].code is ErrorCode.BAD_REQUEST
    assert "odd row" in outcomes[70].message
    assert len(milvus.written) == 199
    assert milvus.calls.count("upsert") < 20


def test_given_rows_that_milvus_lite_refuses_beside_searches_then_an_upsert_waits_for_these_once(
    store: Store, milvus: Milvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    wait = store._turns.await_write
    monkeypatch.setattr(store._turns, "await_write", lambda: waits.append(wait()))
    milvus.on_upsert = raising(MilvusException(1100, "invalid parameter: odd row"))  # type: ignore[method-assign]
    outcomes = store.upsert("c", rows(64))
    # Each is asked about alone, and each question would have been another half second beside searches without end
    assert milvus.calls.count("upsert") == 127
    assert None not in outcomes
    assert len(waits) == 1


def test_given_a_server_that_does_not_tell_its_version_then_rows_are_written_all_the_same(
    store: Store, milvus: Milvus
) -> None:
    milvus.on_get_server_version = raising(MilvusException(1100, "no such method"))  # type: ignore[method-assign]
    assert store.upsert("c", rows(2)) == [None, None]
    assert milvus.written == {"r0", "r1"}


def test_given_a_message_limit_when_upserted_then_the_batch_is_halved_until_it_fits(
    store: Store, milvus: Milvus
) -> None:
    take = milvus.on_upsert
    milvus.on_upsert = lambda name, batch: raising(TooLarge())() if len(batch) > 100 else take(name, batch)  # type: ignore[method-assign]
    assert store.upsert("c", rows(512)) == [None] * 512
    assert len(milvus.written) == 512

    milvus.on_upsert = raising(TooLarge())  # type: ignore[method-assign]
    (outcome,) = store.upsert("c", rows(1))
    assert outcome is not None
    assert outcome.code is ErrorCode.TOO_LARGE


def test_given_a_known_index_when_looked_again_then_it_is_not_asked_for_unless_it_cannot_be_loaded(
    store: Store, milvus: Milvus, now: list[float]
) -> None:
    """To tell of an index Milvus Lite counts all rows."""
    now[0] = 100.0
    assert store.upsert("c", rows(1)) == [None]
    assert milvus.calls.count("describe_collection") == 2
    assert milvus.calls.count("describe_index") == milvus.calls.count("list_indexes") == 1

    now[0], milvus.on_load_collection = 200.0, raising(MilvusException(700, "index not found"))  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        store.upsert("c", rows(1))
    milvus.on_load_collection = lambda name: None  # type: ignore[method-assign]
    assert store.upsert("c", rows(1)) == [None]
    assert milvus.calls.count("describe_index") == 2


def test_given_a_collection_made_anew_when_looked_again_then_its_index_is_asked_for(
    store: Store, milvus: Milvus, now: list[float]
) -> None:
    before = milvus.on_describe_collection("c")
    milvus.on_describe_collection = lambda name: {**before, "collection_id": 2}  # type: ignore[method-assign]
    now[0] = 100.0
    assert store.upsert("c", rows(1)) == [None]
    assert milvus.calls.count("describe_index") == 2


def test_given_a_mistake_in_the_code_when_called_then_it_is_not_taken_for_an_absent_store(
    store: Store, milvus: Milvus
) -> None:
    milvus.on_upsert = raising(TypeError("unexpected keyword"))  # type: ignore[method-assign]
    with pytest.raises(TypeError):
        store.upsert("c", rows(1))


def test_given_fewer_rows_acknowledged_than_sent_then_none_is_taken_for_written(store: Store, milvus: Milvus) -> None:
    milvus.on_upsert = lambda name, batch: {"upsert_count": len(batch) - 1}  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="1 of 2"):
        store.upsert("c", rows(2))


def test_given_a_rate_limit_when_upserted_then_nothing_is_decided_and_the_wait_is_longer(
    store: Store, milvus: Milvus
) -> None:
    milvus.on_upsert = raising(MilvusException(9, "quota exceeded"))  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="quota") as error:
        store.upsert("c", rows(2))
    assert error.value.retry_in_s >= 0.5
    assert milvus.calls.count("upsert") == 1


def test_given_a_refused_token_when_called_then_it_is_said_and_not_retried(store: Store, milvus: Milvus) -> None:
    milvus.on_search = raising(MilvusException(1400, "auth check failure"))  # type: ignore[method-assign]
    with pytest.raises(RequestFailed, match="MILVUS_TOKEN") as error:
        search(store)
    assert (error.value.code, error.value.retryable) == (ErrorCode.STORE_FAILED, False)


def test_given_hits_too_large_for_one_answer_when_searched_then_the_queries_are_halved(
    store: Store, milvus: Milvus
) -> None:
    take = milvus.on_search
    milvus.on_search = lambda name, data, **kw: raising(TooLarge())() if len(data) > 3 else take(name, data)  # type: ignore[method-assign]
    assert search(store, 10) == [[Hit("a", 1.0, {"n": 1})]] * 10

    milvus.on_search = raising(TooLarge())  # type: ignore[method-assign]
    with pytest.raises(RequestFailed) as error:
        search(store)
    assert error.value.code is ErrorCode.TOO_LARGE


def test_given_a_search_that_milvus_refuses_when_searched_then_it_is_a_bad_request(
    store: Store, milvus: Milvus
) -> None:
    milvus.on_search = raising(MilvusException(1100, "invalid parameter"))  # type: ignore[method-assign]
    with pytest.raises(RequestFailed) as error:
        search(store)
    assert error.value.code is ErrorCode.BAD_REQUEST


def test_given_a_collection_that_is_still_loading_when_searched_then_nothing_is_decided(
    store: Store, milvus: Milvus
) -> None:
    milvus.on_search = raising(MilvusException(101, "collection not loaded"))  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="loaded"):
        search(store)
    assert milvus.calls.count("search") == 2

    milvus.on_load_collection = raising(MilvusException(1100, "index not found"))  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="cannot load"):
        search(store)


def test_given_a_collection_made_anew_for_another_model_when_time_passes_then_nothing_more_is_written_into_it(
    store: Store, milvus: Milvus, now: list[float]
) -> None:
    milvus.told = TOLD.replace('"f"', '"g"')
    now[0] = 11.0
    with pytest.raises(RequestFailed) as error:
        store.upsert("c", rows(1))
    assert error.value.code is ErrorCode.MODEL_MISMATCH
    with pytest.raises(RequestFailed) as error:
        search(store)
    assert error.value.code is ErrorCode.MODEL_MISMATCH
    assert milvus.written == set()


def test_given_a_store_in_use_when_called_again_then_the_collection_is_not_asked_about_each_time(
    store: Store, milvus: Milvus
) -> None:
    store.upsert("c", rows(3))  # what store it is is asked once
    milvus.calls.clear()
    for _ in range(5):
        store.upsert("c", rows(3))
        search(store, 2)
    assert milvus.calls == ["upsert", "search"] * 5


def test_given_a_busy_milvus_when_collections_are_listed_then_unloaded_ones_have_no_count(
    store: Store, milvus: Milvus
) -> None:
    milvus.on_list_collections = lambda: ["c"]  # type: ignore[attr-defined]
    milvus.on_query = raising(MilvusException(101, "not loaded"))  # type: ignore[attr-defined]
    (info,) = store.list_collections()
    assert (info.name, info.rows) == ("c", None)


def test_given_a_flush_that_milvus_missed_when_it_is_quiet_again_then_it_is_flushed(
    store: Store, milvus: Milvus, now: list[float]
) -> None:
    milvus.on_get_server_version = lambda: "milvus_lite-3.2.2"  # type: ignore[attr-defined]
    milvus.on_flush = raising(MilvusException(65535, "away"))  # type: ignore[attr-defined]
    store.upsert("c", rows(1))
    now[0] = 3.0
    with pytest.raises(StoreUnavailable):
        store.flush_quiet(2.0)
    milvus.on_flush = lambda name: None  # type: ignore[attr-defined]
    assert store.flush_quiet(2.0) == ["c"]
    assert store.flush_quiet(2.0) == []


def test_given_a_fork_when_called_in_the_child_then_it_gets_a_client_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Store(StoreConfig("http://127.0.0.1:1"))._connection
    monkeypatch.setattr(connection, "_make", Milvus)
    first = connection._connected()
    assert connection._connected() is first

    monkeypatch.setattr("os.getpid", lambda: -1)

    assert connection._connected() is not first


def test_given_a_search_under_way_on_milvus_lite_when_rows_come_then_they_are_written_after_it(
    store: Store, milvus: Milvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._turns, "_most_s", 60.0)
    find, asked, order = milvus.on_search, threading.Event(), []

    def on_get_server_version() -> str:
        asked.set()  # the writer asks it before it decides whether to wait
        return "milvus_lite 3.2"

    def on_search(name: str, data: Sequence[Any], **how: Any) -> Any:
        writing.start()
        assert asked.wait(20)
        writing.join(0.1)
        order.append("found")
        return find(name, data, **how)

    def write() -> None:
        store.upsert("c", rows(1))
        order.append("written")

    milvus.on_get_server_version = on_get_server_version  # type: ignore[method-assign]
    milvus.on_search = on_search  # type: ignore[method-assign]
    writing = threading.Thread(target=write)
    search(store)
    writing.join(20)
    assert order == ["found", "written"]
