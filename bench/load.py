"""Load: open loop, where requests arrive when they arrive, and closed loop, where so many are on their way.

In an open loop nobody waits for an answer before the next request is sent, and a latency counts from the moment that
the request was *meant* to arrive. A service that stalls for a second is then seen to have kept all waiting who came in
that second; a loop that waits for answers sends nothing meanwhile and sees one slow request ("coordinated omission").
"""

from __future__ import annotations

import asyncio
import random
import selectors
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

FEWEST = 30


@dataclass(slots=True)
class Record:
    """One request, in seconds since the load began.

    Attributes:
        intended: when it was meant to arrive.
        sent: when it was sent; later, if the generator was behind.
        ended: when its result or its error was there.
        error: what went wrong; empty for a result.
    """

    intended: float
    sent: float
    ended: float = 0.0
    error: str = ""

    @property
    def latency(self) -> float:
        return self.ended - self.intended


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load has shown.

    Attributes:
        rate: results per second of the load, or until the last request had ended where that was later.
        latencies: of the results, seconds, from the intended arrival.
        failed: requests that ended with an error, by what it was.
        late: 99 % of the requests were sent at most so many seconds after they were meant to be. Far above the
            latency of an idle service, the generator was the bottleneck.
    """

    rate: float
    latencies: list[float]
    failed: dict[str, int]
    late: float

    @classmethod
    def of(cls, records: Sequence[Record], seconds: float = 0.0) -> Outcome:
        """Out of single requests of a load of so many seconds (0: as long as it took).

        Raises:
            ValueError: there are none.
        """
        if not records:
            raise ValueError("no requests")
        took = max(seconds, *(record.ended for record in records))
        latencies = [record.latency for record in records if not record.error]
        failed: dict[str, int] = {}
        for record in records:
            if record.error:
                failed[record.error] = failed.get(record.error, 0) + 1
        return cls(
            rate=len(latencies) / took if took > 0 else 0.0,
            latencies=latencies,
            failed=failed,
            late=percentile([record.sent - record.intended for record in records], 99),
        )


def long_enough(rate: float, seconds: float) -> float:
    """So many seconds, or more where fewer than `FEWEST` requests would come: of five there is no p99."""
    return max(seconds, FEWEST / rate)


def poisson(rate: float, seconds: float, seed: int = 0) -> list[float]:
    """Moments of arrival, independent of each other as those of many users are: ``rate`` a second on average."""
    gaps = random.Random(seed)
    moments, now = [], gaps.expovariate(rate)
    while now < seconds:
        moments.append(now)
        now += gaps.expovariate(rate)
    return moments


async def open_loop(send: Callable[[int], Awaitable[Any]], moments: Sequence[float]) -> list[Record]:
    """Call ``send(number)`` at each moment (seconds, in order), whatever became of those before; wait for all."""
    loop = asyncio.get_running_loop()
    records: list[Record] = []
    running: set[asyncio.Task[None]] = set()
    began = loop.time()

    async def one(number: int, record: Record) -> None:
        try:
            await send(number)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is counted)
            record.error = name_of(error)
        record.ended = loop.time() - began

    for number, moment in enumerate(moments):
        wait = began + moment - loop.time()
        # Even behind its time the loop must turn, or no answer would be read.
        await asyncio.sleep(max(0.0, wait))
        record = Record(moment, loop.time() - began)
        records.append(record)
        task = loop.create_task(one(number, record))
        running.add(task)
        task.add_done_callback(running.discard)
    while running:
        await asyncio.wait(running)
    return records


async def closed_loop(send: Callable[[int], Awaitable[Any]], count: int, in_flight: int) -> list[Record]:
    """``count`` calls of ``send(number)``, ``in_flight`` at a time; each is meant to arrive when there is room."""
    loop = asyncio.get_running_loop()
    records: list[Record] = []
    numbers = iter(range(count))
    began = loop.time()

    async def one_after_another() -> None:
        for number in numbers:
            now = loop.time() - began
            record = Record(now, now)
            records.append(record)
            try:
                await send(number)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is counted)
                record.error = name_of(error)
            record.ended = loop.time() - began

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    return records


def name_of(error: Exception) -> str:
    """A code where the error has one: ``queue_full`` says more than its text does; else what it is, and its text."""
    return str(getattr(error, "code", "") or f"{type(error).__name__}: {error}"[:80])


def run(main: Awaitable[Any]) -> Any:
    """As ``asyncio.run``, but on ``select``: epoll's waits are rounded up to whole milliseconds, and so each arrival
    would be late by half of one on average."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(main)  # type: ignore[arg-type]
