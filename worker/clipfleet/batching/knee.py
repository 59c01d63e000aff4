"""How large batches are worth being on a CPU: the size from which on a larger one hardly brings more a second.

On a GPU a full batch takes hardly longer than one item. On a CPU what is saved by company is soon saved, and all that
a larger batch then brings is that everybody waits longer for it. Pure: who measures passes in what a run takes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["knee", "measured"]

WORTH = 0.03  # more items a second, for twice the batch, that are worth it
LEAST_S, MOST_S = 0.05, 1.0  # of measuring
PASSES = 3  # the least of so many runs of a size counts: whatever else a machine does makes a run longer, never shorter


def measured(cost: Callable[[int], float], most: int) -> dict[int, float]:
    """Seconds that runs of 1, 2, 4, ... items take, as far as is needed to know the knee, and as a start may take.

    A worker that starts is waited for: so no further run is begun once they took eight times what one item takes, 0.05
    to 1 s, together. One item and two are run in any case.

    Args:
        cost: runs so many items; seconds that it took, infinity if there is no room for so many.
        most: items of the largest run.
    """
    costs: dict[int, float] = {}
    spent, budget = 0.0, MOST_S
    for _ in range(PASSES):
        size = 1
        while size <= most and (spent < budget or (size <= 2 and size not in costs)):
            seconds = cost(size)
            costs[size] = min(costs.get(size, math.inf), seconds)
            budget = min(MOST_S, max(LEAST_S, 8 * costs[1]))
            spent += seconds
            # Two doublings for nothing: one alone may have met with a noise.
            if seconds == math.inf or (size >= 4 and 4 * knee(_up_to(size, costs), size) <= size):
                break
            size *= 2
    return costs


def knee(costs: Mapping[int, float], most: int, besides_s: float = 0.0) -> int:
    """The smallest size from which on each doubling brings less than 3 % more items a second.

    Where the largest size measured still is worth it, its line and the one before it are followed, up to `most`.

    Args:
        costs: seconds by number of items, each number twice the one before it.
        most: the answer at most.
        besides_s: seconds that a run costs besides, whatever its size.
    """
    rates = {size: size / (seconds + besides_s) for size, seconds in sorted(costs.items())}
    sizes = list(rates)
    found = next(
        size
        for at, size in enumerate(sizes)
        if all(rates[more] < rates[size] * (1 + WORTH) ** math.log2(more / size) for more in sizes[at + 1 :])
    )
    if found == sizes[-1] and len(sizes) > 1:
        half = sizes[-2]
        slope = max(0.0, costs[found] - costs[half]) / (found - half)
        constant = max(0.0, costs[found] + besides_s - slope * found)
        while found < most and constant >= WORTH * (2 * slope * found + constant):
            found *= 2
    return min(found, most)


def _up_to(size: int, costs: Mapping[int, float]) -> dict[int, float]:
    return {one: seconds for one, seconds in costs.items() if one <= size}
