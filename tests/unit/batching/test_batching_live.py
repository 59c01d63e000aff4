"""Live queries beside a bulk run, on a simulated device: its clock is the simulation's, its cost is known."""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clipfleet.batching import BatchPolicy, BatchQueue, Lane, Launch, Reason, RunCost, Wait
from clipfleet.batching.choice import choose
from clipfleet.batching.stage import Batch, Monitor, Stage

BULK_S = 0.1
DELAY_S = 0.01
Line = tuple[float, float]


class Device:
    """One device with stages ``image`` and ``text``; ``lines`` are seconds an item and seconds a run of each.

    While ``bulk`` is told there are always two batches' worth of bulk pictures waiting; ``live`` are the times at which
    an interactive item comes to a stage.
    """

    def __init__(self, lines: dict[str, Line], *, live: dict[str, list[float]], bulk: bool, size: int = 64) -> None:
        monitor = Monitor()
        self.lines = lines
        policy = BatchPolicy(size, DELAY_S, bulk_batch_s=BULK_S)
        self.stages = {name: Stage[Any](policy, capacity=None, name=name, monitor=monitor) for name in lines}
        self.monitor = monitor
        self.arrivals = [(at, name) for name, times in live.items() for at in times]
        heapq.heapify(self.arrivals)
        self.bulk = bulk
        self.bulk_waiting = 0
        self.now = 0.0
        self.latencies: dict[str, list[float]] = {name: [] for name in lines}
        self.runs: list[tuple[str, int, int, float]] = []  # stage, interactive, bulk, seconds
        self.warm_up()

    def warm_up(self) -> None:
        """What a worker learns from some seconds of each kind of work."""
        for name, stage in self.stages.items():
            for n in (1, 2, 4, 8, 3, 1):
                stage.record_run(n, self.seconds(name, n))

    def seconds(self, name: str, n: int) -> float:
        a, b = self.lines[name]
        return a * n + b

    def play(self, until: float) -> Device:
        while self.now < until:
            self.feed()
            choice = choose(list(self.stages.values()), self.now, self.monitor.owed_s)
            if isinstance(choice, float):
                self.now = min(choice, self.arrivals[0][0] if self.arrivals else math.inf, until)
                continue
            self.run(choice.stage.pop(self.now, choice.reason, passes=choice.passes))
        return self

    def feed(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.now:
            at, name = heapq.heappop(self.arrivals)
            self.stages[name].queue.add(("live", at), enqueued_at=at, now=self.now)
        queue = self.stages["image"].queue
        if self.bulk:
            missing = max(0, 2 * queue.policy.max_batch_size - self.bulk_waiting)
            queue.add_all([("bulk", self.now)] * missing, enqueued_at=self.now, now=self.now, lane=Lane.BULK)
            self.bulk_waiting += missing

    def run(self, batch: Batch[Any]) -> None:
        seconds = self.seconds(batch.stage, len(batch))
        self.now += seconds
        batch.done(seconds)
        live = [at for kind, at in batch.items if kind == "live"]
        self.latencies[batch.stage] += [self.now - at for at in live]
        self.bulk_waiting -= len(batch) - len(live)
        self.runs.append((batch.stage, len(live), len(batch) - len(live), seconds))

    def share_of_bulk(self) -> float:
        """Of the device's time, by the places of each batch."""
        busy = sum(seconds for *_, seconds in self.runs)
        return sum(seconds * bulk / (live + bulk) for _, live, bulk, seconds in self.runs) / busy


def poisson(rate: float, until: float, seed: int = 1) -> list[float]:
    chance, at, times = random.Random(seed), 0.0, []
    while (at := at + chance.expovariate(rate)) < until:
        times.append(at)
    return times


def p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


CPU, GPU = {"image": (0.012, 0.004), "text": (0.001, 0.003)}, {"image": (0.0002, 0.02), "text": (0.00005, 0.005)}


@pytest.mark.parametrize("lines", [CPU, GPU], ids=["a cpu", "a gpu"])
@pytest.mark.parametrize("rate", [5, 40, 100])
def test_given_a_bulk_run_then_live_texts_wait_for_one_batch_of_it_at_most(lines: dict[str, Line], rate: float) -> None:
    live = {"text": poisson(rate, 60)}
    alone = Device(lines, live=live, bulk=False).play(61)
    beside = Device(lines, live=live, bulk=True).play(61)
    assert len(alone.latencies["text"]) == len(beside.latencies["text"]) == len(live["text"])
    longest = max(seconds for _, _, bulk, seconds in beside.runs if bulk)
    assert longest <= BULK_S * 7 / 8
    # What comes while a batch of bulk runs is a longer batch itself: the last eighth is for that.
    assert p99(beside.latencies["text"]) <= p99(alone.latencies["text"]) + BULK_S
    assert max(beside.latencies["text"]) <= max(alone.latencies["text"]) + BULK_S


@pytest.mark.parametrize("lines", [CPU, GPU], ids=["a cpu", "a gpu"])
def test_given_live_pictures_beside_bulk_ones_then_they_too_wait_for_one_batch_at_most(lines: dict[str, Line]) -> None:
    live = {"image": poisson(10, 60)}
    alone = Device(lines, live=live, bulk=False).play(61)
    beside = Device(lines, live=live, bulk=True).play(61)
    assert p99(beside.latencies["image"]) <= p99(alone.latencies["image"]) + BULK_S
    assert beside.share_of_bulk() > 0.5


def test_given_more_live_texts_than_the_device_can_do_then_bulk_still_gets_its_eighth_of_it() -> None:
    live = {"text": [n / 900 for n in range(30 * 900)]}  # the device alone does at most 950 a second
    device = Device(CPU, live=live, bulk=True).play(30)
    assert device.share_of_bulk() == pytest.approx(1 / 8, abs=0.02)


def test_given_more_live_pictures_than_the_device_can_do_then_bulk_has_an_eighth_of_the_places() -> None:
    live = {"image": [n / 200 for n in range(20 * 200)]}
    device = Device(CPU, live=live, bulk=True).play(20)
    given = sum(bulk for _, _, bulk, _ in device.runs)
    assert given / sum(live + bulk for _, live, bulk, _ in device.runs) == pytest.approx(1 / 8, abs=0.02)


def test_given_a_device_where_more_items_cost_nothing_then_bulk_runs_in_full_batches_and_live_items_ride_along() -> (
    None
):
    device = Device(GPU, live={"image": poisson(20, 20)}, bulk=True).play(20)
    sizes = [live + bulk for _, live, bulk, _ in device.runs[20:]]
    assert sum(sizes) / len(sizes) >= 0.9 * 64


@pytest.mark.parametrize("lines", [CPU, {"image": (0.03, 0.0), "text": (0.001, 0.0)}, GPU])
def test_given_a_bulk_run_alone_then_its_batches_take_what_they_may_and_waste_no_more_than_an_item(
    lines: dict[str, Line],
) -> None:
    device = Device(lines, live={}, bulk=True).play(20)
    took = [seconds for *_, seconds in device.runs[5:]]
    assert max(took) <= BULK_S
    largest = min(64, math.floor((BULK_S * 7 / 8 - lines["image"][1]) / lines["image"][0]))
    assert min(bulk for _, _, bulk, _ in device.runs[5:]) >= 0.9 * largest - 1


# The rule itself ---------------------------------------------------------------------------------------------------


def queue_of(a: float, b: float, *, size: int = 64) -> BatchQueue[int]:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(size, DELAY_S, bulk_batch_s=BULK_S))
    for n in (1, 2, 4, 8, 16, 5, 1):
        queue.record_run(n, a * n + b)
    return queue


def test_given_a_prepared_bulk_batch_when_a_live_item_is_due_then_it_overtakes_it() -> None:
    queue = queue_of(0.02, 0.0)
    queue.add_all(range(100, 104), enqueued_at=0.0, now=0.0, lane=Lane.BULK)
    queue.add(1, enqueued_at=0.0, now=0.001)
    assert queue.next_batch(0.02) == Launch(Reason.FULL)
    assert queue.take(0.02).items == [1]
    assert queue.take(0.02).items == [100, 101, 102, 103]


def test_given_a_full_bulk_batch_when_a_live_item_is_not_due_then_it_rides_along() -> None:
    queue = queue_of(0.02, 0.0)
    queue.add_all(range(100, 104), enqueued_at=0.0, now=0.0, lane=Lane.BULK)
    queue.add(1, enqueued_at=0.0, now=0.0)
    assert queue.take(0.005).items == [1, 100, 101, 102]


def test_given_live_items_that_are_due_one_by_one_then_bulk_saves_up_its_places() -> None:
    queue = queue_of(0.02, 0.0)
    queue.add_all(range(100, 200), enqueued_at=0.0, now=0.0, lane=Lane.BULK)
    taken: list[int] = []
    for item in range(14):
        queue.add(item, enqueued_at=0.0, now=1.0)
        taken += queue.take(1.0).items
    assert [item for item in taken if item >= 100] == [100, 101]


def test_given_bulk_siblings_in_decode_then_a_due_live_item_does_not_wait_for_them() -> None:
    queue = queue_of(0.01, 0.0)
    queue.announce(3, now=0.0, lane=Lane.BULK)
    queue.add(100, enqueued_at=0.0, now=0.0, lane=Lane.BULK)
    assert queue.next_batch(0.011) != Launch(Reason.DELAY)
    assert queue.add(1, enqueued_at=0.005, now=0.012), "its owner must look again"
    assert queue.next_batch(0.012) == Wait(0.005 + DELAY_S)
    assert queue.next_batch(0.016) == Launch(Reason.DELAY)


def test_given_nothing_known_then_bulk_begins_with_one_item_and_doubles() -> None:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(64, DELAY_S, bulk_batch_s=BULK_S))
    queue.add_all(range(200), enqueued_at=0.0, now=0.0, lane=Lane.BULK)
    sizes = []
    for _ in range(8):
        sizes.append(len(queue.take(0.0).items))
        queue.record_run(sizes[-1], 0.0005 * sizes[-1] + 0.02)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 64]


def test_given_live_items_that_wait_for_siblings_when_a_bulk_batch_is_due_then_they_go_before_it() -> None:
    device = Device(CPU, live={}, bulk=True)
    device.feed()
    text = device.stages["text"].queue
    tickets = text.announce(2, now=0.0)
    text.add(("live", 0.0), enqueued_at=0.0, now=0.0, ticket=tickets[0])
    choice = choose(list(device.stages.values()), DELAY_S, 0.0)
    assert not isinstance(choice, float)
    assert (choice.stage.name, choice.reason, choice.passes) == ("text", Reason.DELAY, True)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_given_no_time_for_bulk_then_the_policy_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="bulk_batch_s"):
        BatchPolicy(1, 0.0, bulk_batch_s=wrong)


# What it may cost --------------------------------------------------------------------------------------------------


def test_given_no_run_yet_then_one_item_is_the_most() -> None:
    assert RunCost().most(1.0, 64) == 1


def test_given_one_item_that_takes_too_long_then_as_many_run_as_hardly_lengthen_it() -> None:
    dear, flat = RunCost(), RunCost()
    for n in (1, 2, 4, 8, 16, 32, 64, 64):
        dear.observe(n, 0.3 * n)
        flat.observe(n, 0.3 + 0.0001 * n)
    assert (dear.most(0.1, 64), flat.most(0.1, 64)) == (1, 64)


@settings(deadline=None)
@given(a=st.floats(1e-4, 0.05), b=st.floats(0.0, 0.05), noise=st.floats(0.0, 0.3), seed=st.integers(0, 999))
@example(a=0.0078125, b=0.046875, noise=0.296875, seed=1)  # slow runs are to be in time, too: those set the size
def test_given_any_device_when_sized_by_what_was_learnt_then_it_settles_near_the_largest_size(
    a: float, b: float, noise: float, seed: int
) -> None:
    cost, chance = RunCost(), random.Random(seed)
    sizes = []
    for _ in range(120):
        sizes.append(cost.most(BULK_S, 64))
        cost.observe(sizes[-1], (a * sizes[-1] + b) * chance.uniform(1 - noise, 1 + noise))
    best, surest = (min(64, max(1, (BULK_S / slow - b) / a)) for slow in (1.0, 1 + noise))
    later = sizes[40:]
    assert 0.6 * surest - 1 <= sum(later) / len(later) <= 1.4 * best + 1


def test_given_a_device_that_varies_when_sized_then_few_runs_take_longer_than_they_may() -> None:
    cost, chance = RunCost(), random.Random(7)
    taken = []
    for _ in range(1_000):
        size = cost.most(BULK_S, 64)
        taken.append((0.003 * size + 0.004) * chance.lognormvariate(0.0, 0.2))
        cost.observe(size, taken[-1])
    longer = sum(seconds > BULK_S for seconds in taken[100:])
    assert 20 <= longer <= 90
