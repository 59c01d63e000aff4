"""The worker's parts that need no Redis."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from clipfleet.pipeline.engine.isolate import Isolator
from clipfleet.schemas.codec import decode_map
from clipfleet.schemas.errors import ErrorCode, ProtocolError, RequestFailed, error_for
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.limits import DEAD_MAX_INPUT_BYTES
from clipfleet.schemas.request import Request, RequestReader
from clipfleet.worker.clock import ServerClock
from clipfleet.worker.config import WorkerConfig
from clipfleet.worker.entry import Entry, open_entry
from clipfleet.worker.ledger import Ledger
from clipfleet.worker.letters import dead_letter

KEYS = QueueKeys("clip")
LANE = KEYS.lanes[0]


def entry(
    stream_id: str = "1000-0",
    *,
    payload: bytes | None = None,
    read_at: float = 0.0,
    lane: str = LANE,
    **fields: bytes,
) -> Entry:
    m = Request("a", "echo", {"data": 1}).encode() if payload is None else payload
    raw = {b"m": m, **{name.encode(): value for name, value in fields.items()}}
    return open_entry(lane, stream_id, raw, RequestReader(KEYS, 10**6), deliveries=1, read_at=read_at)


# Entries -------------------------------------------------------------------------------------------------------------


def test_an_entry_knows_its_deadline_and_the_bytes_that_admission_counted() -> None:
    one = entry(d=b"61000")
    assert (one.deadline_ms, one.size, one.enqueued_ms, one.id) == (61_000, len(one.payload), 1_000, "a")


def test_a_bare_entry_lives_a_minute_and_counts_no_bytes() -> None:
    assert (entry().deadline_ms, entry().size) == (61_000, 0)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x80", b"\x90" * 2000])
def test_an_undecodable_entry_is_an_entry_with_a_verdict(payload: bytes) -> None:
    one = entry(payload=payload, d=b"x")
    assert one.request is None
    assert one.invalid is not None
    assert one.invalid.code is ErrorCode.BAD_REQUEST


# Dead letters --------------------------------------------------------------------------------------------------------


def test_a_dead_letter_keeps_a_small_request_whole_and_of_a_large_input_hash_and_size() -> None:
    big = Request("a", "embed_image", {"image": b"x" * 100_000}).encode()
    letter = dead_letter(entry(payload=big), error_for(ErrorCode.POISONED))
    fields = dict(zip(letter[::2], letter[1::2], strict=True))
    kept = fields["request"]
    assert isinstance(kept, bytes)
    assert len(kept) < DEAD_MAX_INPUT_BYTES
    assert decode_map(kept, max_bytes=10**6)["inputs"]["image"]["size"] == 100_000
    small = entry()
    assert small.payload in dead_letter(small, error_for(ErrorCode.POISONED))


def test_a_hostile_dead_letter_is_small_too() -> None:
    deep = {f"k{i}": "v" * 1000 for i in range(500)}
    letter = dead_letter(entry(payload=Request("a", "echo", deep).encode()), error_for(ErrorCode.POISONED))
    assert all(len(part) <= DEAD_MAX_INPUT_BYTES for part in letter if isinstance(part, bytes))


# Isolation -----------------------------------------------------------------------------------------------------------


def works(*names: str) -> list[Any]:
    step = SimpleNamespace(name="a stage")
    return [SimpleNamespace(work=SimpleNamespace(request=SimpleNamespace(id=name)), step=step) for name in names]


def run_with(bad: set[str], sizes: list[int]) -> Isolator:
    def run(batch: Any) -> list[str]:
        sizes.append(len(batch))
        if any(task.work.request.id in bad for task in batch):
            raise ValueError("bad one in here")
        return [task.work.request.id for task in batch]

    return Isolator(run, lambda error: isinstance(error, MemoryError))


def test_the_guilty_item_is_found_and_its_neighbours_are_answered() -> None:
    sizes: list[int] = []
    batch = works(*[f"w{i}" for i in range(64)])
    values = run_with({"w17"}, sizes)(batch)
    assert [value for value in values if isinstance(value, str)] == [f"w{i}" for i in range(64) if i != 17]
    assert isinstance(values[17], RequestFailed)
    assert values[17].code is ErrorCode.MODEL_FAILED
    assert len(sizes) == 13


def test_a_model_that_fails_for_all_fails_each() -> None:
    values = run_with({f"w{i}" for i in range(5)}, [])(works(*[f"w{i}" for i in range(5)]))
    assert [value.code for value in values] == [ErrorCode.MODEL_FAILED] * 5


@pytest.mark.parametrize("returned", [0, 3, 5])
def test_a_wrong_number_of_outputs_is_an_error_and_never_a_shift(returned: int) -> None:
    isolator = Isolator(lambda batch: ["x"] * returned if len(batch) == 4 else [], lambda _: False)
    values = isolator(works("a", "b", "c", "d"))
    assert [value.code for value in values] == [ErrorCode.MODEL_FAILED] * 4


def test_a_verdict_of_the_stage_keeps_its_text() -> None:
    def run(_batch: Any) -> list[str]:
        raise error_for(ErrorCode.BAD_SHAPE, "not like that")

    (value,) = Isolator(run, lambda _: False)(works("a"))
    assert (value.code, value.message) == (ErrorCode.BAD_SHAPE, "not like that")


def test_out_of_memory_is_remembered_and_no_items_fault() -> None:
    sizes: list[int] = []

    def run(batch: Any) -> list[str]:
        sizes.append(len(batch))
        if len(batch) > 16:
            raise MemoryError
        return ["ok"] * len(batch)

    isolator = Isolator(run, lambda error: isinstance(error, MemoryError))
    assert isolator(works(*"abcdefgh" * 8)) == ["ok"] * 64
    sizes.clear()
    assert isolator(works(*"abcdefgh" * 8)) == ["ok"] * 64
    assert sizes == [16, 16, 16, 16]


def test_one_item_that_the_device_has_no_memory_for_is_told_so() -> None:
    def run(_batch: Any) -> list[str]:
        raise MemoryError

    (value,) = Isolator(run, lambda error: isinstance(error, MemoryError))(works("a"))
    assert value.code is ErrorCode.OUT_OF_MEMORY
    assert value.retryable


# The ledger ----------------------------------------------------------------------------------------------------------


def test_the_ledger_reports_before_it_holds_and_after_it_lets_go() -> None:
    said: list[tuple[int, int]] = []
    ledger = Ledger(10.0, lambda added, removed: said.append((len(added), len(removed))))
    one, two = entry("1-0"), entry("2-0")
    ledger.add([one, two])
    ledger.to_store([two])
    assert (len(ledger), ledger.active, ledger.stored) == (2, 1, 1)
    ledger.remove([one, two])
    ledger.remove([one])
    assert (len(ledger), ledger.active, ledger.stored) == (0, 0, 0)
    assert said == [(2, 0), (0, 2), (0, 0)]


def test_the_ledger_books_the_time_in_which_it_holds_anything_and_more_than_can_be_under_way(monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr("clipfleet.worker.ledger.time.monotonic", lambda: now[0])
    ledger = Ledger(10.0, lambda _added, _removed: None)
    ledger.full = 2

    def after(seconds: float) -> tuple[float, float]:
        now[0] += seconds
        return ledger.times()

    assert after(5.0) == (0.0, 0.0)
    ledger.add([entry("1-0")])
    assert after(1.0) == (1.0, 0.0)
    ledger.add([entry("2-0")])
    assert after(2.0) == (3.0, 2.0)
    ledger.to_store([entry("2-0")])
    assert after(4.0) == (7.0, 2.0)
    ledger.remove([entry("1-0"), entry("2-0")])
    assert after(8.0) == (7.0, 2.0)


def test_what_has_one_id_in_both_lanes_is_held_twice() -> None:
    gone: list[list[Entry]] = []
    ledger = Ledger(10.0, lambda _, removed: gone.append(removed))
    live, bulk = entry("1-0"), entry("1-0", lane=KEYS.lanes[1])
    ledger.add([live, bulk])
    assert (len(ledger), ledger.active_in(KEYS.lanes[0]), ledger.active_in(KEYS.lanes[1])) == (2, 1, 1)
    ledger.to_store([bulk])
    ledger.to_store([bulk])
    assert (ledger.active, ledger.active_in(KEYS.lanes[0]), ledger.active_in(KEYS.lanes[1])) == (1, 1, 0)
    ledger.remove([live])
    assert (live.place in ledger, bulk.place in ledger) == (False, True)
    ledger.forget([bulk.place])
    assert (len(ledger), gone) == (0, [[], [live], [bulk]])


def test_what_was_handed_back_and_taken_again_is_not_forgotten_for_a_renewal_that_found_it_gone() -> None:
    ledger = Ledger(10.0, lambda _a, _r: None)
    lost, again = entry("1-0", read_at=99.0), entry("2-0", read_at=100.5)
    ledger.add([lost, again])
    ledger.forget([lost.place, again.place], 100.0)
    assert ledger.held() == [again]


def test_waiting_for_room_ends_when_there_is_some() -> None:
    ledger = Ledger(10.0, lambda _a, _r: None)
    one = entry("1-0")
    ledger.add([one])
    assert not ledger.wait_active(0, 0.0)
    waiter = threading.Thread(target=ledger.wait_active, args=(0, 10.0))
    waiter.start()
    ledger.remove([one])
    waiter.join(5)
    assert not waiter.is_alive()


def test_leases_are_stale_without_renewal_and_fresh_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(10.0, lambda _a, _r: None)
    now = [100.0]
    monkeypatch.setattr("clipfleet.worker.ledger.time.monotonic", lambda: now[0])
    one, young = entry("1-0", read_at=90.0), entry("2-0", read_at=99.0)
    assert ledger.stale([one, young]) == [one]
    ledger.renewed(98.0)
    assert ledger.stale([one, young]) == []
    now[0] = 107.5
    assert ledger.stale([one, young]) == [one, young]


def test_the_servers_clock_is_followed_with_half_the_round_trip() -> None:
    clock = ServerClock()
    assert clock.stale
    clock.set(5_000_000.0, before=10.0, after=10.2)
    assert clock._offset_ms == pytest.approx(5_000_000.0 - 10_100.0)


# Configuration -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"max_batch_size": 0},
            {"max_delay_ms": -1},
            {"bulk_batch_ms": 0},
            {"capacity": 0},
            {"bulk_capacity": -1},
            {"lease_ms": 1},
        ),
        *({"max_request_bytes": 0}, {"max_queue_bytes": 0}, {"processes": 0}, {"threads": 0}, {"decode_threads": -1}),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WorkerConfig(**wrong)


def test_a_queue_name_that_keys_cannot_hold_is_refused() -> None:
    with pytest.raises(ProtocolError):
        WorkerConfig(queue="a{b}")


def test_secrets_are_not_shown() -> None:
    config = WorkerConfig(redis_url="redis://:hunter2@host", milvus_token="root:hunter2")
    assert "hunter2" not in repr(config)


def test_the_configuration_travels_to_the_worker_process_unchanged(tmp_path: Any) -> None:
    config = WorkerConfig(allow_roots={"pictures": tmp_path}, providers=("cpu",), milvus_uri="http://localhost:1")
    assert WorkerConfig.of_message(config.to_message()) == config


# Pipelines of one's own -----------------------------------------------------------------------------------------------


def test_pipelines_are_served_under_their_own_or_a_given_name_and_all_workers_must_serve_them() -> None:
    config = WorkerConfig(pipelines=("shop.flows:objects", "texts=shop.flows:nested.words"), milvus_uri="http://m:1")
    assert config.pipeline_targets == {"objects": "shop.flows:objects", "texts": "shop.flows:nested.words"}
    assert config.agreed("", 0)["features"] == "store,pipeline:objects,pipeline:texts"


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (("a:search",), "there is a pipeline 'search' already"),
        (("a:words", "b:words"), "give it another one: NAME=b:words"),
        (("a b=m:x",), "'a b' is no name"),
        (("",), "'' is no name"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused_before_anything_starts(paths: tuple[str, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        WorkerConfig(pipelines=paths)
