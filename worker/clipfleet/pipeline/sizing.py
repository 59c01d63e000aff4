"""How large the batches of an opened operator are worth being on this CPU, measured before its first request."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from clipfleet.batching import knee, measured

if TYPE_CHECKING:
    from clipfleet.operators.operator import Opened, Place

__all__ = ["worthwhile"]

# What a worker spends on a batch besides the call: asking about leases and cancels, settling, waking threads.
BESIDES_S = 0.002


def worthwhile(opened: Opened, place: Place, calls: int, most: int) -> int:
    """The size of batches, at most ``most``, from which on a larger one hardly brings more items a second.

    As many runs as will be at once are measured at once: they share caches and memory. Where a call has one thread, its
    processor time is what counts: it is the same beside whatever else the machine is doing.

    Args:
        opened: what runs, with a sample.
        place: where.
        calls: how many of its calls run at once.
        most: the answer at most.
    """
    clock = time.thread_time if place.threads // calls == 1 else time.perf_counter
    together = threading.Barrier(calls)

    def run(size: int) -> float:
        items = [opened.sample] * size
        together.wait()
        began = clock()
        try:
            opened.run(items)
        except Exception as error:
            if size == 1 or not _no_room(error):
                raise
            return float("inf")
        return clock() - began

    with ThreadPoolExecutor(calls, "sizing") as threads:

        def cost(size: int) -> float:
            return sum(threads.map(run, [size] * calls)) / calls

        return knee(measured(cost, most), most, BESIDES_S)


def _no_room(error: Exception) -> bool:
    from clipfleet.models.errors import OutOfMemory  # noqa: PLC0415  (whoever has a model to measure has it by then)

    return isinstance(error, OutOfMemory | MemoryError)
