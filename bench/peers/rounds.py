"""What the producers of all peers share; the standard library alone, as each peer runs in an environment of its own.

A producer is told ``count in_flight`` on a line of its standard input and answers with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/0")
DATA = "x" * 32
WAIT_S = 60.0  # for one result: far above what any of them needs, far below for ever


def serve(run: Callable[[int, int], list[float]]) -> None:
    """Answer rounds until the input ends; ``run`` gives the seconds that each request took."""
    for line in sys.stdin:
        count, in_flight = map(int, line.split())
        began = time.perf_counter()
        latencies = run(count, in_flight)
        seconds = time.perf_counter() - began
        if len(latencies) != count:
            raise RuntimeError(f"{len(latencies)} results of {count} requests")
        print(json.dumps({"seconds": seconds, "latencies": latencies}), flush=True)


def window(count: int, in_flight: int, send: Callable[[], Any], receive: Callable[[Any], Any]) -> list[float]:
    """``in_flight`` at a time; the oldest is waited for first, as one worker answers about in order."""
    waiting: deque[tuple[float, Any]] = deque()
    latencies = []
    for number in range(count + in_flight):
        if number >= in_flight and waiting:
            sent_at, ticket = waiting.popleft()
            receive(ticket)
            latencies.append(time.perf_counter() - sent_at)
        if number < count:
            waiting.append((time.perf_counter(), send()))
    return latencies


async def async_window(count: int, in_flight: int, call: Callable[[], Awaitable[Any]]) -> list[float]:
    """``in_flight`` coroutines, each of which sends its next request when it has read a result."""
    left = iter(range(count))
    latencies: list[float] = []

    async def one_after_another() -> None:
        for _ in left:
            began = time.perf_counter()
            await call()
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    return latencies
