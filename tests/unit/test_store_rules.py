"""The store's decisions that need no store: errors, retries, rows, names, indexes."""

from __future__ import annotations

import subprocess
import sys
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import (
    CollectionInfo,
    Field,
    Row,
    StoreConfig,
    StoreUnavailable,
    check_vector,
    retry_delay,
    retrying,
)
from clipfleet.store.catalog import choose_index
from clipfleet.store.retry import Verdict, classify, unavailable
from clipfleet.store.rows import CHUNK_BYTES, Encoded, chunks, encode_rows
from clipfleet.store.spec import Spec, read_description
from clipfleet.store.types import check_collection_name


class MilvusException(Exception):
    """The shape of pymilvus' own: `code` is an int, or a grpc.StatusCode when its retries ran out."""

    def __init__(self, code: object, message: str = "") -> None:
        super().__init__(f"<MilvusException: (code={code}, message={message})>")
        self.code = code
        self.message = message


class RpcError(Exception):
    """The shape of grpc's: `code` is a method."""

    def __init__(self, name: str, details: str = "") -> None:
        super().__init__(details)
        self.name = name

    def code(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.name)


class ParamError(Exception):
    code = 1


def caused(error: Exception, cause: Exception) -> Exception:
    """As pymilvus raises it while it connects."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (MilvusException(2, "Fail connecting to server"), Verdict.RETRY),
        (MilvusException(503, "service unavailable"), Verdict.RETRY),
        (MilvusException(1, "[upsert_rows] Retry timeout: 5s"), Verdict.RETRY),
        (MilvusException(65535, "no available shard delegator found"), Verdict.RETRY),
        (MilvusException(SimpleNamespace(name="UNAVAILABLE")), Verdict.RETRY),
        (RpcError("UNAVAILABLE"), Verdict.RETRY),
        (RpcError("DEADLINE_EXCEEDED"), Verdict.RETRY),
        (RpcError("CANCELLED"), Verdict.RETRY),
        (ValueError("something inside pymilvus"), Verdict.RETRY),
        (MilvusException(8, "request is rejected by limiter"), Verdict.RATE_LIMITED),
        (MilvusException(9, "quota exceeded"), Verdict.RATE_LIMITED),
        (RpcError("RESOURCE_EXHAUSTED", "too many requests"), Verdict.RATE_LIMITED),
        (RpcError("RESOURCE_EXHAUSTED", "grpc: received message larger than max (72 vs. 64)"), Verdict.SPLIT),
        (MilvusException(100, "collection not found"), Verdict.MISSING),
        (MilvusException(101, "collection not loaded"), Verdict.NOT_LOADED),
        (MilvusException(1100, "invalid parameter"), Verdict.INVALID),
        (MilvusException(6, "vector field expected dim 8, got 7"), Verdict.INVALID),
        (MilvusException(65535, "value 'NaN' is not a number or infinity"), Verdict.INVALID),
        (MilvusException(65535, "cannot parse expression: x"), Verdict.INVALID),
        (RpcError("INVALID_ARGUMENT"), Verdict.INVALID),
        (RpcError("UNIMPLEMENTED"), Verdict.INVALID),
        (ParamError("wrong type"), Verdict.INVALID),
        (RpcError("UNAUTHENTICATED"), Verdict.DENIED),
        (MilvusException(1400, "auth"), Verdict.DENIED),
        (caused(MilvusException(2, "Fail connecting: away"), RpcError("UNAVAILABLE")), Verdict.RETRY),
        (caused(MilvusException(2, "Fail connecting: token"), RpcError("UNAUTHENTICATED")), Verdict.DENIED),
    ],
    ids=lambda value: str(value)[:60],
)
def test_given_an_error_of_milvus_when_classified_then_it_says_what_can_be_done(
    error: Exception, verdict: Verdict
) -> None:
    assert classify(error) is verdict


def test_given_a_rate_limit_when_waited_for_then_longer_than_for_a_hiccup() -> None:
    limited = unavailable(MilvusException(8, "slow down"), "upsert")
    assert limited.retry_in_s > unavailable(MilvusException(2, "gone"), "upsert").retry_in_s
    assert "upsert" in limited.message


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 10))
@settings(deadline=None)
def test_given_any_attempt_when_delayed_then_at_least_what_was_asked_and_at_most_5_s_more(
    attempt: int, jitter: float, asked: float
) -> None:
    delay = retry_delay(StoreUnavailable("", asked), attempt, jitter=lambda: jitter)
    assert delay is not None
    assert asked <= delay <= max(asked, 5.0)


def test_given_growing_attempts_when_delayed_then_the_ceiling_doubles_up_to_5_s() -> None:
    delays = [retry_delay(StoreUnavailable("", 0.0), attempt, jitter=lambda: 1.0) for attempt in range(9)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert retry_delay(ValueError(), 0) is None


class Clock:
    """Time that passes by waiting alone."""

    def __init__(self, stopped_at: float | None = None) -> None:
        self.now = 0.0
        self.stopped_at = stopped_at

    def __call__(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return self.stopped_at is not None and self.now >= self.stopped_at

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.is_set()


def test_given_a_store_that_comes_back_when_retried_then_the_answer_is_given() -> None:
    clock, answers = Clock(), iter([StoreUnavailable("a"), StoreUnavailable("b"), "done"])

    def call() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert retrying(call, deadline=10.0, stop=clock, clock=clock) == "done"  # type: ignore[arg-type]
    assert clock.now > 0


def test_given_a_store_that_stays_away_when_the_deadline_nears_then_it_is_store_failed_before_it() -> None:
    clock = Clock()

    def call() -> None:
        raise StoreUnavailable("gone", 0.3)

    with pytest.raises(RequestFailed, match="did not answer in time: gone") as error:
        retrying(call, deadline=5.0, stop=clock, clock=clock)  # type: ignore[arg-type]
    assert error.value.code is ErrorCode.STORE_FAILED
    assert error.value.retryable
    assert clock.now <= 5.0


def test_given_a_shutdown_when_waiting_then_nothing_is_decided() -> None:
    clock = Clock(stopped_at=1.0)

    def call() -> None:
        raise StoreUnavailable("gone", 0.3)

    with pytest.raises(StoreUnavailable):
        retrying(call, deadline=100.0, stop=clock, clock=clock)  # type: ignore[arg-type]
    assert clock.now < 10


def test_given_a_verdict_when_retried_then_it_is_raised_at_once() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise RequestFailed(ErrorCode.MODEL_MISMATCH)

    with pytest.raises(RequestFailed):
        retrying(call, deadline=float("inf"), stop=Event())
    assert calls == [1]


@pytest.mark.parametrize(
    "uri", ["milvus.db", "./x/milvus.db", "/data/milvus", "file:///x.db", "", "http://", "localhost:19530"]
)
def test_given_a_file_as_the_address_when_configured_then_it_says_what_to_do(uri: str) -> None:
    with pytest.raises(ValueError, match=r"http://host:19530.*--local"):
        StoreConfig(uri)


def test_given_secrets_when_shown_then_they_are_not() -> None:
    assert "s3cret" not in repr(StoreConfig("http://host:19530", token="root:s3cret"))
    with pytest.raises(ValueError, match="no Milvus address") as error:
        StoreConfig("ftp://root:s3cret@host/x")
    assert "s3cret" not in str(error.value)


def test_given_no_time_when_configured_then_it_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        StoreConfig("http://host", timeout_s=0)


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ä", "a" * 129, 'x"; drop', "a\n"])
def test_given_an_unusable_name_when_checked_then_it_is_refused(name: str) -> None:
    with pytest.raises(RequestFailed) as error:
        check_collection_name(name)
    assert error.value.code is ErrorCode.BAD_REQUEST
    with pytest.raises(RequestFailed):
        Field(name, "int")


@pytest.mark.parametrize("name", [5, None, b"a", ["a"]])
def test_given_no_text_as_a_name_when_checked_then_it_is_refused(name: object) -> None:
    with pytest.raises(RequestFailed, match="no collection name"):
        check_collection_name(name)


@pytest.mark.parametrize("name", ["id", "vector", "Metadata", "year__set", "LIKE", "not", "json_contains_any", "true"])
def test_given_a_word_of_ours_or_of_milvus_when_declared_then_it_is_refused(name: str) -> None:
    with pytest.raises(RequestFailed, match="cannot declare"):
        Field(name, "int")


def test_given_an_unusable_spec_when_made_then_it_is_refused() -> None:
    for spec in (
        {"fingerprint": ""},
        {"dimension": 0},
        {"dimension": 40_000},
        {"fields": (Field("a", "int"), Field("a", "str"))},
    ):
        with pytest.raises(RequestFailed):
            Spec(**{"name": "c", "fingerprint": "f", "dimension": 8, **spec})
    with pytest.raises(RequestFailed):
        Field("a", "date")  # type: ignore[arg-type]


def test_given_a_configuration_when_the_index_is_chosen_then_by_size_and_store() -> None:
    def chosen(*, lite: bool, **options: object) -> str:
        return choose_index(StoreConfig("http://h", **options), lite=lite)

    assert chosen(lite=True) == "FLAT"
    assert chosen(lite=False) == "HNSW"
    assert chosen(lite=False, expected_rows=50_000) == "FLAT"
    assert chosen(lite=True, expected_rows=50_001) == "HNSW"
    assert chosen(lite=True, index="HNSW", expected_rows=1) == "HNSW"


def test_given_a_description_when_read_then_either_place_tells_and_a_wrong_one_is_nobodys() -> None:
    told = '{"v": 1, "fingerprint": "f", "dimension": 8, "metric": "COSINE", "fields": {"year": "int"}}'
    columns = [{"name": "vector", "params": {"dim": 8}}]
    ours = CollectionInfo("c", "f", 8, (Field("year", "int"),), "FLAT")

    assert read_description("c", {"properties": {"clipfleet": told}, "fields": columns}, "FLAT") == ours
    assert read_description("c", {"description": told, "fields": columns}, "FLAT") == ours
    for text in (
        "",
        "{}",
        "[]",
        "hello",
        told.replace('"v": 1', '"v": 2'),
        told.replace("COSINE", "L2"),
        told.replace("8", "9"),
    ):
        assert read_description("c", {"description": text, "fields": columns}, "").fingerprint == ""


INFO = CollectionInfo("c", "f", 4, (Field("year", "int"), Field("w", "float"), Field("t", "str"), Field("ok", "bool")))
UNIT = np.array([1, 0, 0, 0], np.float32)


def test_given_declared_fields_when_encoded_then_columns_say_what_is_there() -> None:
    ((first, second), failed) = encode_rows(
        [Row("a", UNIT, {"year": 1, "w": 2, "x": 3}), Row("b", UNIT, {"year": None})], INFO
    )

    assert failed == {}
    assert {key: first.entity[key] for key in ("year", "year__set", "w", "w__set", "t", "t__set", "ok__set")} == {
        "year": 1, "year__set": True, "w": 2.0, "w__set": True, "t": "", "t__set": False, "ok__set": False,
    }  # fmt: skip
    assert (second.entity["year"], second.entity["year__set"]) == (0, False)
    assert second.entity["metadata"] == '{"year":null}'


@pytest.mark.parametrize(
    "metadata",
    [
        {"year": "1"}, {"year": True}, {"year": 1.5}, {"year": 2**63}, {"w": "x"}, {"w": True}, {"t": 1}, {"ok": 1},
        pytest.param({"x": object()}, id="an object"),
        {"x": {2: 3}}, {"x": 2**64}, {"x": "\udfff"}, {"\udfff": 1}, [("a", 1)], None,
    ],
    ids=repr,
)  # fmt: skip
def test_given_metadata_that_cannot_be_kept_when_encoded_then_that_row_is_refused(metadata: dict[str, object]) -> None:
    encoded, failed = encode_rows([Row("a", UNIT, metadata), Row("b", UNIT)], INFO)
    assert [row.entity["id"] for row in encoded] == ["b"]
    assert failed[0].code is ErrorCode.BAD_REQUEST


def test_given_deep_metadata_when_encoded_then_it_is_refused_and_not_recursed_into() -> None:
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"d": deep}
    _, failed = encode_rows([Row("a", UNIT, deep)], INFO)
    assert "nested" in failed[0].message


def test_given_one_id_often_when_encoded_then_one_row_stands_for_all() -> None:
    rows = [Row("a", UNIT, {"n": 1}), Row("b", UNIT), Row("a", UNIT, {"n": 2}), Row("a", UNIT, {"year": "bad"})]
    encoded, failed = encode_rows(rows, INFO)
    assert [(row.positions, row.entity["metadata"]) for row in encoded] == [((0, 2), '{"n":2}'), ((1,), "{}")]
    assert list(failed) == [3]


@given(st.lists(st.integers(0, 100_000) | st.just(CHUNK_BYTES - 1), max_size=40), st.integers(1, 60))
@settings(deadline=None)
def test_given_any_rows_when_cut_then_order_is_kept_and_no_piece_is_too_large(sizes: list[int], repeat: int) -> None:
    encoded = [Encoded((position,), {}, size) for position, size in enumerate(sizes * repeat)]
    pieces = list(chunks(encoded))
    assert [row for piece in pieces for row in piece] == encoded
    assert all(0 < len(piece) <= 512 and sum(row.size for row in piece) <= CHUNK_BYTES for piece in pieces)


def test_given_vectors_when_checked_then_only_those_with_a_direction_pass() -> None:
    assert check_vector(UNIT, 4) is None
    assert check_vector(UNIT.astype(np.float64), 4) is None
    for bad in (UNIT[:3], UNIT[None], [1, 0, 0, 0], "abcd"):
        problem = check_vector(bad, 4)
        assert problem is not None
        assert problem.code is ErrorCode.BAD_SHAPE
    for bad in (UNIT * 0, UNIT * np.nan, np.full(4, 1e300), np.full(4, 3e38, np.float32)):
        problem = check_vector(bad, 4)
        assert problem is not None
        assert problem.code is ErrorCode.BAD_REQUEST


def test_given_a_process_when_it_imports_the_store_then_pymilvus_stays_out() -> None:
    script = (
        "import sys, clipfleet.store, clipfleet.store.lite, clipfleet.store.connection\n"
        "from clipfleet.store import Store, StoreConfig\n"
        "Store(StoreConfig('http://127.0.0.1:1')).close()\n"
        "print([name for name in ('pymilvus', 'grpc', 'milvus_lite', 'pandas') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
