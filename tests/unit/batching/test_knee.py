"""The size of batches that is worth it, of what runs cost. No clock: costs are given."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.batching import knee, measured

# Milliseconds of ViT-B/32 on one core, two runs at once: the more of a batch the caches do not hold, the slower it is.
VIT = {1: 101.0, 2: 168.0, 4: 332.0, 8: 640.0, 16: 1_300.0, 32: 2_720.0, 64: 5_630.0}


def line(a: float, b: float, most: int = 64) -> dict[int, float]:
    return {1 << at: a * (1 << at) + b for at in range(most.bit_length())}


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (VIT, 2),
        ({size: VIT[size] for size in (1, 2, 4)}, 2),
        (line(1, 0), 1),  # company saves nothing
        (line(0, 1), 64),  # a batch takes as long as one item: a GPU
        (line(1, 1), 32),  # from 16 on twice as many bring 3.03 %, from 32 on 1.5
        (line(1, 4), 64),
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 1.9, 4: math.inf}, 2),  # no room for more
    ],
)
def test_given_what_runs_cost_then_the_smallest_size_that_larger_ones_hardly_beat(costs, expected) -> None:
    assert knee(costs, 64) == expected


def test_given_one_run_that_met_with_a_noise_then_company_that_pays_is_not_given_up() -> None:
    costs = line(1, 4)
    costs[2] *= 1.6  # twice as many took longer than two runs of one
    assert knee(costs, 64) == 64


def test_given_a_start_that_measured_but_a_few_then_their_line_is_followed_and_no_further_than_allowed() -> None:
    few = line(1, 4, most=4)
    assert knee(few, 64) == 64
    assert knee(few, 24) == 24


def test_given_what_a_worker_spends_on_each_batch_then_it_counts_as_if_the_run_took_longer() -> None:
    assert knee(line(1, 0), 64, besides_s=1) == knee(line(1, 1), 64)


@given(a=st.floats(1e-6, 10), b=st.floats(0, 100), most=st.integers(1, 256))
def test_given_a_line_then_neither_half_of_the_answer_nor_twice_it_is_better(a: float, b: float, most: int) -> None:
    size = knee(line(a, b, most), most)
    assert 1 <= size <= most

    def gain(n: float) -> float:  # of a batch of 2n over one of n
        return 2 * (a * n + b) / (a * 2 * n + b)

    assert size == most or gain(size) < 1.03 + 1e-9
    assert size in {1, most} or gain(size / 2) >= 1.03 - 1e-9


def runs(costs, most: int) -> tuple[dict[int, float], list[int]]:
    asked: list[int] = []

    def cost(size: int) -> float:
        asked.append(size)
        return costs(size)

    return measured(cost, most), asked


def test_given_quick_runs_then_each_size_is_measured_several_times_and_the_least_counts() -> None:
    noise = iter([5, 1, 1, 1, 1, 1, 1, *[3] * 50])
    found, asked = runs(lambda size: next(noise) * 1e-6 * (size + 20), 64)
    assert sorted(found) == [1, 2, 4, 8, 16, 32, 64]
    assert asked.count(1) == 3
    assert found[1] == pytest.approx(3 * 21e-6)
    assert found[64] == pytest.approx(84e-6)


def test_given_slow_runs_then_a_start_is_not_held_up_by_them() -> None:
    found, asked = runs(lambda size: 2.0 * size, 64)
    assert asked == [1, 2]
    assert knee(found, 64) == 1


def test_given_two_doublings_for_nothing_then_no_larger_run_is_made() -> None:
    _, asked = runs(lambda size: 1e-4 * size, 64)
    assert max(asked) == 4


def test_given_no_room_for_so_many_then_no_more_are_tried_and_the_answer_has_room() -> None:
    found, asked = runs(lambda size: math.inf if size > 8 else 1e-4, 64)
    assert max(asked) == 16
    assert knee(found, 64) == 8


def test_given_a_limit_of_one_then_one_is_all_that_is_measured() -> None:
    found, asked = runs(lambda _: 1e-4, 1)
    assert set(asked) == {1}
    assert knee(found, 1) == 1
