"""What a run is expected to take, learnt from runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.batching import RunCost


@given(st.floats(1e-5, 1e-2), st.floats(1e-4, 1e-1), st.lists(st.integers(1, 64), min_size=8, max_size=60, unique=True))
def test_given_runs_on_a_line_then_the_cost_model_finds_it(slope: float, constant: float, sizes: list[int]) -> None:
    cost = RunCost()
    for n in sizes:
        cost.observe(n, slope * n + constant)
    assert cost.estimate(64) == pytest.approx(slope * 64 + constant, rel=1e-3)
    assert cost.runs == len(sizes)


def test_given_a_slow_first_run_and_one_outlier_then_the_estimate_stays_close() -> None:
    cost = RunCost()
    assert cost.estimate(64) is None
    cost.observe(64, 30.0)
    for n in (64, 1, 32, 64, 8, 64, 64, 16):
        cost.observe(n, 0.001 * n + 0.01)
    cost.observe(64, 5.0)
    estimate = cost.estimate(64)
    assert estimate is not None
    assert 0.074 <= estimate < 0.15


def test_given_a_device_that_became_ten_times_slower_then_the_estimate_follows() -> None:
    cost = RunCost()
    for n in (64, 32) * 20:
        cost.observe(n, 0.1)
    for n in (64, 32) * 20:
        cost.observe(n, 1.0)
    assert cost.estimate(64) == pytest.approx(1.0, rel=0.15)


@given(st.lists(st.tuples(st.integers(-1, 99), st.floats(-1, 1e6) | st.just(math.nan)), max_size=40))
def test_given_any_measurements_then_an_estimate_is_never_negative(runs: list[tuple[int, float]]) -> None:
    cost = RunCost()
    for n, seconds in runs:
        cost.observe(n, seconds)
        line = cost.line()
        assert line is None or (line[0] >= 0 and line[1] >= 0 and all(map(math.isfinite, line)))


# What is refused or promised by it --------------------------------------------------------------------------------


def test_given_few_runs_then_nobody_is_refused_for_them() -> None:
    cost = RunCost()
    for n in (1, 2, 4, 8, 16, 1, 2, 4, 8):
        cost.observe(n, 0.01 + 0.001 * n)
    assert cost.at_least(8) is None
    cost.observe(16, 0.026)
    assert cost.at_least(8) == pytest.approx(0.018, rel=0.01)


def test_given_runs_of_one_size_then_fewer_items_may_be_quicker_and_more_may_cost_nothing() -> None:
    cost = RunCost()
    for _ in range(20):
        cost.observe(32, 0.32)
    assert [cost.at_least(n) for n in (1, 16, 32, 64)] == [pytest.approx(s) for s in (0.01, 0.16, 0.32, 0.32)]
    # What is promised by it is the other way round: each item may cost as much as it did
    assert cost.each(64) == pytest.approx(0.01)


def test_given_small_runs_alone_then_large_ones_are_refused_for_twice_the_largest_at_the_most() -> None:
    cost = RunCost()
    for n in (1, 2, 1, 2, 1, 1, 2, 1, 2, 2):
        cost.observe(n, 0.01 + 0.01 * n)
    assert cost.at_least(64) == pytest.approx(0.05, rel=0.05)


@given(st.floats(1e-5, 1e-2), st.floats(1e-4, 1e-1), st.integers(1, 64))
def test_given_the_line_is_known_then_both_agree_with_it(slope: float, constant: float, n: int) -> None:
    cost = RunCost()
    for size in (64, 1, 32, 8, 64, 16, 2, 64, 4, 64, 1, 32):
        cost.observe(size, slope * size + constant)
    assert cost.at_least(n) == pytest.approx(slope * n + constant, rel=0.02)
    assert cost.each(n) == pytest.approx(slope + constant / n, rel=0.02)
