"""`@batched` in one process, per call, beside the tightest queues that Python allows."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from bench import tight
from bench.harness import in_turn
from bench.results import Part
from clipfleet.batching import batched

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

MOST, CALLERS, THREADS = 64, 256, 16
OURS = "@batched"
SHORT = 4  # turns for each round: many short ones meet the machine's every mood, a few long ones some of them


def run(options: argparse.Namespace) -> Part:
    """A function that gives its inputs back: what remains is what a call costs."""
    part = Part(
        "batched",
        "@batched in one process, per call",
        f"A function that returns its inputs, batches of up to {MOST}, `max_delay` 0. From asyncio with {CALLERS} "
        f"callers, each of which awaits its output before its next call, and from {THREADS} threads likewise. The "
        "limits are queues with nothing about them (`bench/tight.py`): no capacity, no halving, no close; those "
        '"in the loop" also let the loop stand still while the function runs. Each round is of '
        f"{SHORT} short turns, in turn.",
    )
    found: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    sizes: dict[str, dict[int, int]] = {}

    def turn(name: str, work: Callable[[int, dict[int, int]], float], count: int) -> Callable[[int], None]:
        def once(number: int) -> None:
            if number < 0:  # warm-up
                work(count // 10, {})
                return
            began = time.process_time()
            found.setdefault(name, []).append(work(count, sizes.setdefault(name, {})) / count * 1e6)
            busy.setdefault(name, []).append((time.process_time() - began) / count * 1e6)

        return once

    count = max(10_000, options.count * 2 // SHORT)
    turns = [
        turn("limit: a deque and call_soon, in the loop", lambda n, s: asyncio.run(_limit(tight.InLoop, n, s)), count),
        turn(
            "limit: asyncio.Queue and a task, in the loop",
            lambda n, s: asyncio.run(_limit(tight.AsyncioQueue, n, s)),
            count,
        ),
        turn("limit: asyncio, the function in a thread", lambda n, s: asyncio.run(_limit(tight.InThread, n, s)), count),
        turn(f"{OURS} from asyncio", lambda n, s: asyncio.run(ours_from_asyncio(n, s)), count),
        turn("limit: threads, a lock for each call", _limit_threads, count // 4),
        turn(f"{OURS} from threads", ours_from_threads, count // 4),
    ]
    for each in turns:
        each(-1)
    in_turn(SHORT * options.rounds, turns)
    for name, values in found.items():
        arrival = f"closed loop, {THREADS} threads" if "threads" in name else f"closed loop, {CALLERS} callers"
        part.add(name, values, "us/call", arrival=arrival, batches=dict(sorted(sizes[name].items())))
    limits = {
        "an asyncio queue": ("limit: asyncio.Queue and a task, in the loop", f"{OURS} from asyncio", ">= 0.7"),
        "a deque and call_soon": ("limit: a deque and call_soon, in the loop", f"{OURS} from asyncio", ""),
        "a queue with a thread": ("limit: asyncio, the function in a thread", f"{OURS} from asyncio", ""),
        "a queue for threads": ("limit: threads, a lock for each call", f"{OURS} from threads", ">= 0.7"),
    }
    for what, (limit, mine, target) in limits.items():
        # Of times, so upside down: how much of the limit's speed is left.
        part.ratio(f"speed: {mine} / {what}", found[limit], found[mine], target=target)
        part.ratio(f"by processor time: {mine} / {what}", busy[limit], busy[mine])
    return part


def _counting(sizes: dict[int, int]) -> Callable[[list[Any]], list[Any]]:
    def function(batch: list[Any]) -> list[Any]:
        size = len(batch)
        sizes[size] = sizes.get(size, 0) + 1
        return batch

    return function


async def _calls(call: Callable[[Any], Awaitable[Any]], count: int) -> float:
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            if await call(number) != number:
                raise RuntimeError("somebody else's output")

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return time.perf_counter() - began


async def _limit(kind: type, count: int, sizes: dict[int, int]) -> float:
    batcher = kind(_counting(sizes), MOST)
    try:
        return await _calls(batcher, count)
    finally:
        if hasattr(batcher, "close"):
            batcher.close()


async def ours_from_asyncio(count: int, sizes: dict[int, int]) -> float:
    with batched(max_batch_size=MOST, max_delay=0, capacity=2 * CALLERS)(_counting(sizes)) as function:
        return await _calls(function, count)


def _from_threads(call: Callable[[Any], Any], count: int) -> float:
    wrong: list[int] = []

    def caller(first: int) -> None:
        wrong.extend(number for number in range(first, count, THREADS) if call(number) != number)

    threads = [threading.Thread(target=caller, args=(first,)) for first in range(THREADS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise RuntimeError("somebody else's output")
    return time.perf_counter() - began


def _limit_threads(count: int, sizes: dict[int, int]) -> float:
    batcher = tight.FromThreads(_counting(sizes), MOST)
    try:
        return _from_threads(batcher.call, count)
    finally:
        batcher.close()


def ours_from_threads(count: int, sizes: dict[int, int]) -> float:
    with batched(max_batch_size=MOST, max_delay=0, capacity=2 * CALLERS)(_counting(sizes)) as function:
        return _from_threads(function.call, count)
