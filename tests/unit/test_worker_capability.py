"""What a worker says it can do, from the figures that it sends."""

from __future__ import annotations

from typing import Any

import pytest

from clipfleet.worker.capability import Capability


class Worker:
    """Figures as a process sends them, second by second of a clock of its own."""

    def __init__(self, *stages: tuple[str, int, float | None]) -> None:
        self.capability = Capability()
        self.stages = stages
        self.at = self.busy_s = self.full_s = 0.0
        self.settled = 0
        self.items = [0] * len(stages)

    def second(self, settled: int, *items: int, busy: float = 0.1, full: float = 0.0) -> float:
        self.at += 1.0
        self.busy_s += busy
        self.full_s += full
        self.settled += settled
        self.items = [had + more for had, more in zip(self.items, items, strict=True)]
        return self.tell()

    def tell(self) -> float:
        loads = [[*stage[:2], items, stage[2]] for stage, items in zip(self.stages, self.items, strict=True)]
        stats: dict[str, Any] = {"at": self.at, "busy_s": self.busy_s, "full_s": self.full_s, "settled": self.settled}
        return self.capability.observe({**stats, "loads": loads})


def test_given_a_worker_that_did_nothing_then_nothing_is_known() -> None:
    worker = Worker(("device:cuda:0", 1, None))
    assert worker.second(0, 0) == 0.0


def test_given_low_load_then_it_is_what_its_costs_allow_and_not_what_was_asked_for() -> None:
    worker = Worker(("device:cuda:0", 1, 0.001))
    assert [worker.second(3, 3) for _ in range(5)] == [pytest.approx(1000.0)] * 5


def test_given_first_figures_that_come_late_then_what_was_done_before_them_counts() -> None:
    worker = Worker(("device:cuda:0", 1, 0.001))
    assert worker.second(30, 30) == pytest.approx(1000.0)


def test_given_several_stages_then_the_resource_that_a_request_holds_longest_sets_the_pace() -> None:
    # Decoding 10 ms on each of two threads; two stages of 1 and 2 ms share the device
    worker = Worker(("pool:", 2, 0.010), ("device:cpu", 1, 0.001), ("device:cpu", 1, 0.002), ("store:write", 1, None))
    assert worker.second(4, 4, 4, 4, 4) == pytest.approx(200.0)
    # Texts alone from now on: nothing is decoded
    rates = [worker.second(100, 0, 0, 100, 0) for _ in range(20)]
    assert rates[-1] == pytest.approx(500.0, rel=0.02)
    assert rates == sorted(rates)


def test_given_requests_of_many_rows_then_a_request_costs_as_much_as_its_rows() -> None:
    worker = Worker(("device:cpu", 1, 0.001))
    assert worker.second(2, 100) == pytest.approx(20.0)


def test_given_more_than_can_be_under_way_then_what_it_does_then_corrects_the_costs_also_later() -> None:
    # Four processes on two cores: each costs what it would alone, and does half of it
    worker = Worker(("device:cpu", 1, 0.001))
    assert worker.second(10, 10) == pytest.approx(1000.0)
    rates = [worker.second(500, 500, busy=1.0, full=1.0) for _ in range(6)]
    assert rates[2] < 600
    assert rates[-1] == pytest.approx(500.0, rel=0.02)
    assert worker.second(3, 3) == pytest.approx(500.0, rel=0.02)


def test_given_a_second_of_other_requests_then_what_was_asked_before_it_still_counts() -> None:
    # Given many pictures, then a few texts: decoding 10 ms, the device 1 ms
    worker = Worker(("pool:", 1, 0.010), ("device:cpu", 1, 0.001))
    worker.second(100, 100, 100)
    # Then a request is taken for one of what came of late, and not of that second alone: 80 pictures of 82
    assert worker.second(2, 0, 2) == pytest.approx(82 / 0.8)


@pytest.mark.parametrize(("settled", "least", "most"), [(1, 15.0, 25.0), (100_000, 1_900.0, 2_000.0)])
def test_given_figures_that_no_costs_explain_then_they_are_believed_within_bounds(
    settled: int, least: float, most: float
) -> None:
    worker = Worker(("device:cpu", 1, 0.001))
    rates = [worker.second(settled, settled, busy=1.0, full=1.0) for _ in range(12)]
    assert least < rates[-1] <= most


def test_given_a_busy_worker_without_a_backlog_then_it_is_not_taken_for_all_that_it_can_do() -> None:
    worker = Worker(("device:cpu", 1, 0.001))
    for _ in range(5):
        rate = worker.second(20, 20, busy=1.0, full=0.5)
    assert rate == pytest.approx(1000.0)


def test_given_no_stage_with_a_cost_then_it_is_what_was_settled_while_anything_was_held() -> None:
    worker = Worker()
    assert worker.second(50, busy=0.025) == pytest.approx(2000.0)
    assert worker.second(0, busy=0.0) == pytest.approx(2000.0)


def test_given_figures_that_come_twice_in_a_moment_then_they_are_one_window() -> None:
    worker = Worker(("device:cpu", 1, 0.001))
    worker.second(5, 5)
    worker.at += 1e-3
    worker.settled += 1
    assert worker.tell() == pytest.approx(1000.0)
    assert worker.second(5, 6) == pytest.approx(1000.0)
