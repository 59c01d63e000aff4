"""Figures out of many measurements."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest of the values that at least ``percent`` of them do not exceed: one that was measured, never between.

    Raises:
        ValueError: there are no values, or ``percent`` is not above 0 and up to 100.
    """
    ordered = sorted(values)
    if not ordered or not 0 < percent <= 100:
        raise ValueError(f"no percentile {percent} of {len(ordered)} values")
    # 99 % of 300 is 297.00000000000006 by floats' reckoning, and would be the 298th.
    return ordered[max(1, math.ceil(round(percent / 100 * len(ordered), 9))) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """What several rounds say: the median, and how far they lie apart."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


def ratios(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round, as the two of a round met the same weather.

    Raises:
        ValueError: there are not as many of the one as of the other.
    """
    return [one / other for one, other in zip(mine, others, strict=True)]


def mean_batch(sizes: Mapping[int, int]) -> float:
    """Items per batch; 0 without one."""
    batches = sum(sizes.values())
    return sum(size * number for size, number in sizes.items()) / batches if batches else 0.0


def pause_near(times: Sequence[float], place: int, reach: int) -> int:
    """Where the longest pause after an answer is, near that place.

    Answers come in bursts, a batch at a time. A clock that starts in the middle of a burst counts answers whose time
    was before it: up to a whole batch too many.
    """
    near = range(max(0, place - reach), min(len(times) - 1, place + reach + 1))
    return max(near, key=lambda at: times[at + 1] - times[at])
