from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

from clipfleet import pipeline
from clipfleet.pipeline.profile import Observers, Profile
from clipfleet.pipeline.trace import Trace
from clipfleet.schemas.errors import ErrorCode, error_for


@pytest.fixture
def profile() -> Profile:
    """Ten decodes of one item, 1 ms each, in two instances; then a batch of 8 and one of 2, of 10 and 30 ms."""
    profile = Profile()
    for n in range(10):
        began = 100 + n * 0.001
        profile.ran("decode", f"decode-{n % 2}", began, began + 0.001, 1, [str(n)], [0.0])
    profile.ran("clip", "clip-0", 100.02, 100.03, 8, list("01234567"), [0.010 + n * 0.001 for n in range(8)])
    profile.ran("clip", "clip-0", 100.03, 100.06, 2, list("89"), [0.02, 0.5])
    return profile


def test_given_calls_when_asked_then_the_figures_of_each_stage(profile):
    decode, clip = profile.stages()
    assert (decode.stage, decode.instances, decode.items, decode.batches, decode.mean_batch) == ("decode", 2, 10, 10, 1)
    assert decode.busy == pytest.approx(0.01 / (0.06 * 2))
    assert (clip.stage, clip.instances, clip.items, clip.sizes) == ("clip", 1, 10, {2: 1, 8: 1})
    assert clip.mean_batch == 5
    assert clip.wait_p50_s == pytest.approx(0.014)
    assert clip.wait_p99_s == pytest.approx(0.5)
    assert (clip.run_p50_s, clip.run_p99_s) == (pytest.approx(0.01), pytest.approx(0.03))
    assert clip.busy == pytest.approx(0.04 / 0.06)


def test_given_calls_when_printed_then_a_table(profile):
    assert profile.text().splitlines() == [
        "stage       items  batches  mean  sizes         wait p50/p99 ms  run p50/p99 ms  busy",
        "decode (2)     10       10   1.0  1:10              0.00 / 0.00     1.00 / 1.00    8%",
        "clip           10        2   5.0  2-3:1 8-15:1   14.00 / 500.00   10.00 / 30.00   67%",
    ]


def test_given_calls_when_asked_for_json_then_times_in_ms(profile):
    assert json.loads(json.dumps(profile.stages()[1].as_json())) == {
        "stage": "clip",
        "instances": 1,
        "items": 10,
        "batches": 2,
        "mean_batch": 5.0,
        "sizes": {"2": 1, "8": 1},
        "wait_ms": {"p50": 14.0, "p99": 500.0},
        "run_ms": {"p50": 10.0, "p99": 30.0},
        "busy": 0.6667,
    }


def test_given_a_pipeline_at_work_when_profiled_then_what_waits_for_a_slow_stage_is_seen_to_wait():
    def slow(batch):
        until = time.monotonic() + 0.02
        while time.monotonic() < until:  # a model at work
            pass
        return batch

    profile = Profile()
    slowly = pipeline.input("x").map("x", "y", slow, max_batch_size=1).output("y")
    with slowly.open(observer=profile):
        assert [result.table.item() for result in slowly.batch(range(4))] == [0, 1, 2, 3]
    (stage,) = profile.stages()
    assert (stage.stage, stage.items, stage.sizes) == ("slow", 4, {1: 4})
    assert stage.run_p50_s >= 0.02
    assert stage.wait_p99_s >= 0.01
    assert stage.busy > 0.5


def test_given_no_calls_when_asked_then_nothing():
    assert Profile().stages() == []
    assert Profile().text().startswith("stage")
    assert Profile().trace_events() == []


def test_given_threads_when_traced_then_a_track_each_and_an_event_a_call(tmp_path):
    profile = Profile()
    profile.ran("a", "a-0", 5.0, 5.001, 3, ["x"] * 3, [0.0] * 3)
    other = threading.Thread(target=lambda: profile.ran("b", "b-0", 5.0005, 5.002, 1, ["x"], [0.0]), name="device 0")
    other.start()
    other.join()
    assert profile.write_trace(tmp_path / "trace.json") == 0
    events = json.loads((tmp_path / "trace.json").read_text())
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    calls = [event for event in events if event["ph"] == "X"]
    assert [(one["name"], names[one["tid"]], one["ts"], one["dur"]) for one in calls] == [
        ("a", threading.current_thread().name, 0.0, 1000.0),
        ("b", "device 0", 500.0, 1500.0),
    ]
    assert calls[0]["args"] == {"items": 3, "instance": "a-0"}


def test_given_calls_from_many_threads_when_counted_then_none_is_missing():
    profile = Profile()

    def work() -> None:
        for n in range(500):
            profile.ran("a", threading.current_thread().name, n, n + 1, 2, ["x", "y"], [0.0, 0.0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (stage,) = profile.stages()
    assert (stage.instances, stage.batches, stage.items) == (4, 2000, 4000)


def test_given_the_values_of_requests_when_traced_then_one_request_in_order_and_in_short():
    trace = Trace("7")
    trace.made("7", "decode", (), (b"123",), np.zeros((4, 5, 3), np.uint8))
    trace.made("8", "decode", (), (b"123",), "another request's")
    trace.made("7", "crop", (1,), ("second",), "b")
    trace.made("7", "crop", (0,), ("first",), error_for(ErrorCode.BAD_SHAPE, "no such box"))
    assert [line.row for line in trace.lines] == [(), (0,), (1,)]
    assert trace.text().splitlines() == [
        "decode   bytes[3]  → u8[4,5,3]",
        "crop[0]  first     → bad_shape: no such box",
        "crop[1]  second    → b",
    ]


def test_given_several_observers_when_told_then_all_who_want_to_know():
    profile, trace = Profile(), Trace("1")
    both = Observers(profile, trace)
    assert both.values
    assert not Observers(profile).values
    both.ran("a", "a-0", 0.0, 1.0, 1, ["1"], [0.0])
    both.made("1", "a", (), (1,), 2)
    assert profile.stages()[0].items == 1
    assert trace.lines[0].value == "2"
