"""Who is given up since there is no time left: single cases, and a worker under overload on a clock of its own."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.pipeline.engine.forecast import Ahead, too_late
from clipfleet.pipeline.engine.load import MeanCost

if TYPE_CHECKING:
    from collections.abc import Callable

GPU, CPU = (0.0001, 0.01), (0.004, 0.002)  # seconds an item and a run


def line(cost: tuple[float, float]) -> Callable[[int], float]:
    return lambda n: cost[0] * n + cost[1]


IDLE = Ahead(running_s=0.0, waiting=0, decoding=0, size=64, most=64, takers=1, decode_s=0.0, run_s=line(CPU))


def test_given_too_little_is_known_then_nobody_is_given_up() -> None:
    ahead = replace(IDLE, running_s=9.0, waiting=640, run_s=lambda _: None)
    assert too_late([0.001] * 3, ahead, contended=True) == [False] * 3


@pytest.mark.parametrize("contended", [False, True])
def test_given_a_device_of_its_own_then_an_item_is_tried_however_late_it_is(contended: bool) -> None:
    assert too_late([0.0001], IDLE, contended=contended) == [False]


def test_given_room_for_all_then_only_what_is_sure_to_be_late_is_given_up() -> None:
    # Half a second until the device is free, and then a run of so many as are in the batch by then: 10 ms, 14 ms
    ahead = replace(IDLE, running_s=0.5)
    assert too_late([0.1, 0.45, 0.47, 0.6], ahead, contended=False) == [True, True, False, False]


def test_given_a_contended_worker_then_a_place_is_for_what_will_be_in_time() -> None:
    # Half a second, and then a full run of 258 ms
    ahead = replace(IDLE, running_s=0.5)
    assert too_late([0.6, 0.8, 0.94, 0.96, 2.0], ahead, contended=True) == [True, True, True, False, False]


def test_given_batches_ahead_then_each_of_them_counts_and_several_takers_share_them() -> None:
    ahead = replace(IDLE, waiting=128)
    assert too_late([0.9, 1.0], ahead, contended=True) == [True, False]  # 1.25 times three runs
    assert too_late([0.6, 0.7], replace(ahead, takers=2), contended=True) == [True, False]  # of two


def test_given_decode_that_takes_longer_than_the_device_then_its_line_is_what_counts_where_more_waits() -> None:
    ahead = replace(IDLE, running_s=0.01, waiting=100, decoding=100, decode_s=0.01, size=256, most=256)
    run_s = line(CPU)(256)
    in_time = 1.25 * (1.02 + run_s)  # the second item leaves decode after 102 times 10 ms
    assert too_late([in_time - 0.1, in_time + 0.1], ahead, contended=True) == [True, False]


def test_given_room_for_all_and_addresses_that_took_long_then_a_picture_that_is_quick_to_decode_is_tried() -> None:
    # What was fetched took a second each; of this one nobody knows
    ahead = replace(IDLE, running_s=0.01, decode_s=1.0)
    assert too_late([0.5], ahead, contended=False) == [False]


def test_given_small_bulk_batches_then_what_is_before_a_bulk_request_counts_as_the_largest_ones_would() -> None:
    # Of 64 live requests one batch of 64 is made, and of bulk ones batches that grow: not 32 runs of two
    ahead = replace(IDLE, running_s=0.01, waiting=64, size=2, run_s=line(GPU))
    takes_s = 0.01 + line(GPU)(64) + line(GPU)(2)
    for contended, factor in ((False, 0.9), (True, 1.25)):
        left = [factor * takes_s * 1.05, factor * takes_s * 0.8]
        assert too_late(left, ahead, contended=contended) == [False, True]


def test_given_a_batch_that_begins_at_once_then_as_many_go_as_have_time_for_the_run_of_all_of_them() -> None:
    # A run of 9 takes 38 ms: the tenth would make it too long for those with 50 ms
    left = [0.05] * 20
    assert sum(too_late(left, IDLE, contended=True)) == 20 - 9
    # Those with more time are taken first, and lengthen the run for the others
    left = [0.05] * 10 + [1.0] * 10
    assert too_late(left, IDLE, contended=True) == [True] * 10 + [False] * 10


@given(
    st.lists(st.floats(-1, 5), max_size=200),
    st.integers(0, 200),
    st.floats(0, 1),
    st.integers(1, 64),
    st.integers(1, 3),
    st.floats(0, 0.1),
)
def test_given_anything_then_there_is_one_answer_each_and_doubt_is_for_the_item_where_nothing_contends(
    left: list[float], waiting: int, running: float, size: int, takers: int, decode_s: float
) -> None:
    ahead = Ahead(running, waiting, waiting // 2, size, 2 * size, takers, decode_s, line(GPU))
    loose, strict = (too_late(left, ahead, contended=contended) for contended in (False, True))
    assert len(loose) == len(strict) == len(left)
    assert not any(given_up and not too for given_up, too in zip(loose, strict, strict=True))


# A worker under overload --------------------------------------------------------------------------------------------


class Worker:
    """Reads a queue in order, at most two batches at once, and runs them; the clock is the simulation's.

    What is given up, and what has expired, costs it nothing.
    """

    def __init__(self, cost: tuple[float, float], *, size: int, sheds: bool, noise: float) -> None:
        self.run_s, self.size, self.sheds, self.noise = line(cost), size, sheds, noise
        self.chance = random.Random(5)
        self.in_time = self.given_up = self.ran = 0
        self.forming: deque[float] = deque()
        self.running: list[float] = []
        self.free_at = self.expected_at = 0.0

    def play(self, arrivals: list[float], ttl: float) -> None:
        unread: deque[float] = deque()
        events = [(at, 0) for at in arrivals]
        heapq.heapify(events)
        while events:
            now, ended = heapq.heappop(events)
            if ended:
                self.in_time += sum(now <= at + ttl for at in self.running)
                self.running = []
            else:
                unread.append(now)
            while unread and (room := 2 * self.size - len(self.forming) - len(self.running)) > 0:
                self.read([unread.popleft() for _ in range(min(room, len(unread)))], now, ttl, contended=bool(unread))
            if not self.running and self.launch(now, ttl):
                heapq.heappush(events, (self.free_at, 1))

    def read(self, found: list[float], now: float, ttl: float, *, contended: bool) -> None:
        running_s = max(0.0, self.expected_at - now) if self.running else 0.0
        ahead = Ahead(running_s, len(self.forming), 0, self.size, self.size, 1, 0.0, self.run_s)
        left = [at + ttl - now for at in found]
        late = too_late(left, ahead, contended=contended) if self.sheds else [False] * len(found)
        self.given_up += sum(late)
        self.forming += [at for at, too in zip(found, late, strict=True) if not too and at + ttl > now]

    def launch(self, now: float, ttl: float) -> bool:
        while self.forming and len(self.running) < self.size:
            at = self.forming.popleft()
            if at + ttl > now:
                self.running.append(at)
        if self.running:
            takes = self.run_s(len(self.running))
            self.ran += len(self.running)
            self.expected_at = now + takes
            self.free_at = now + takes * (1 + self.chance.uniform(-self.noise, self.noise))
        return bool(self.running)


def played(cost: tuple[float, float], load: float, ttl_runs: float, *, sheds: bool) -> tuple[Worker, float]:
    """A worker after 2,000 arrivals at ``load`` times what it can do, and how many it could do in that time.

    Deadlines are so many full runs away.
    """
    worker = Worker(cost, size=32, sheds=sheds, noise=0.15)
    full_s = worker.run_s(32)
    chance, now, arrivals = random.Random(3), 0.0, []
    while len(arrivals) < 2_000:
        now += chance.expovariate(load * 32 / full_s)
        arrivals.append(now)
    worker.play(arrivals, ttl_runs * full_s)
    return worker, now * 32 / full_s


BOTH = pytest.mark.parametrize("cost", [GPU, CPU], ids=["gpu", "cpu"])


@BOTH
@pytest.mark.parametrize("ttl_runs", [2.5, 4.0])
@pytest.mark.parametrize("load", [1.3, 3.0])
def test_given_overload_then_the_device_is_used_for_what_is_in_time(
    cost: tuple[float, float], ttl_runs: float, load: float
) -> None:
    without, most = played(cost, load, ttl_runs, sheds=False)
    worker, _ = played(cost, load, ttl_runs, sheds=True)
    assert worker.in_time >= 0.9 * most
    assert worker.in_time >= 0.9 * worker.ran
    assert worker.in_time > 1.3 * without.in_time


@BOTH
@pytest.mark.parametrize("ttl_runs", [1.0, 2.0])
@pytest.mark.parametrize("load", [0.3, 0.9, 2.0])
def test_given_any_load_and_deadlines_about_as_long_as_a_run_then_no_fewer_are_in_time(
    cost: tuple[float, float], ttl_runs: float, load: float
) -> None:
    without, _ = played(cost, load, ttl_runs, sheds=False)
    worker, _ = played(cost, load, ttl_runs, sheds=True)
    # 3 %: with a margin on either side some are given up who would have made it.
    assert worker.in_time >= 0.97 * without.in_time


@BOTH
@pytest.mark.parametrize("load", [0.2, 0.8])
def test_given_time_enough_and_less_than_it_can_do_then_nobody_is_given_up(
    cost: tuple[float, float], load: float
) -> None:
    worker, _ = played(cost, load, 2.5, sheds=True)
    assert (worker.given_up, worker.in_time) == (0, 2_000)


# What an item costs where items are taken one by one ----------------------------------------------------------------


def test_given_items_then_their_cost_is_a_mean_that_follows_and_that_one_hung_item_hardly_moves() -> None:
    cost = MeanCost()
    cost.observe(0, 1.0)
    assert (cost.items, cost.each_s) == (0, None)
    for _ in range(20):
        cost.observe(16, 0.016)
    cost.observe(1, 30.0)
    assert cost.each_s == pytest.approx(0.001, rel=0.05)
    for _ in range(60):
        cost.observe(16, 0.032)
    assert cost.each_s == pytest.approx(0.002, rel=0.05)
    assert cost.items == 16 * 80 + 1
