"""What a run waits for, by its own time and by what workers measured."""

from __future__ import annotations

import pytest

from clipfleet.index.meter import Meter, slowest


@pytest.mark.parametrize(
    ("busy", "timing", "what"),
    [
        (0.0, {}, ""),
        (0.95, {"run": 100, "store": 900}, "producer"),
        (0.3, {"prepare": 5, "wait": 40, "run": 60, "store": 20}, "device"),
        (0.3, {"prepare": 5, "wait": 4, "run": 6, "store": 200}, "store"),
        # Our own window waits in Redis, too: it takes much more to be somebody else's backlog.
        (0.3, {"run": 60, "total": 100, "age": 700}, "device"),
        (0.3, {"run": 60, "total": 100, "age": 5_000}, "queue"),
        (0.3, {"run": 60, "total": 100, "age": 50}, "device"),
    ],
)
def test_what_a_run_waits_for(busy, timing, what):
    assert slowest(busy, timing) == what


def test_given_a_producer_that_reads_all_the_time_then_it_is_the_bottleneck_until_it_is_not():
    now = [0.0]
    meter = Meter(lambda: now[0])
    assert meter.bottleneck == ""
    for _ in range(60):
        now[0] += 0.1
        meter.made(0.09)
        meter.answered({"run": 10.0, "store": 1.0})
    assert meter.bottleneck == "producer"
    for _ in range(120):
        now[0] += 0.1
        meter.made(0.001)
        meter.answered({"run": 10.0, "store": 1.0})
    assert meter.bottleneck == "device"
    for _ in range(500):
        meter.answered({"run": 10.0, "store": 100.0})
    assert meter.bottleneck == "store"
