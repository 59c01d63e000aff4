"""How large the batches of an opened operator are worth being on this CPU, measured before its first request."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from clipfleet.batching import knee, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["worthwhile"]

# What a worker spends on a batch besides the call: asking about leases and cancels, settling, waking threads.
BESIDES_S = 0.002
LEAST = 4  # where a noise hides what company brings: three others are soon over, and are not there when nobody asks


def worthwhile(runs: Sequence[Callable[..., Any]], sample: Any, most: int, *, one_thread: bool) -> int:
    """The size of batches, at most ``most``, from which on a larger one hardly brings more items a second.

    As many runs as will be at once are measured at once: they share caches and memory. Where a call has one thread, its
    processor time is what counts: it is the same beside whatever else the machine is doing.

    Args:
        runs: for each thread that will run batches what it runs.
        sample: an item as they take it.
        most: the answer at most.
        one_thread: whether a call runs in its caller's thread alone.

    Raises:
        ValueError: not even one sample can be run.
    """
    clock = time.thread_time if one_thread else time.perf_counter
    together = threading.Barrier(len(runs))

    def run(call: Callable[..., Any], size: int) -> float:
        items = [sample] * size
        together.wait()
        began = clock()
        try:
            call(items)
        except Exception as error:
            if size == 1:
                raise ValueError(f"its sample cannot be run: {type(error).__name__}: {error}") from error
            return math.inf  # no room, or whatever else: where it matters the batch is halved when it comes to it
        return clock() - began

    with ThreadPoolExecutor(len(runs), "sizing") as threads:

        def cost(size: int) -> float:
            return sum(threads.map(run, runs, [size] * len(runs))) / len(runs)

        costs = measured(cost, most)
    least = min([LEAST, *(size // 2 for size, seconds in costs.items() if seconds == math.inf)])
    return min(most, max(least, knee(costs, most, BESIDES_S)))
