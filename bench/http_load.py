"""Load on something that answers one picture at a time: closed loop for its saturation, open loop for its latency.

Open loop: requests are sent when they are due, however many are unanswered, and each one's latency counts from when it
was due. A server that stalls is charged for all that came meanwhile (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench import load
from bench.stats import pause_near, percentile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Send = Callable[[bytes], Awaitable[Any]]

MOST_ERRORS = 20  # a server that refuses its saturation has none to tell


@dataclass
class Outcome:
    """What came of a load.

    Attributes:
        offered: arrivals a second; 0 of a closed loop.
        seconds: of the window that counts.
        latencies: seconds of each answer, in the order of arrival.
        errors: how often each kind of failure came.
        answered: all answers, also those outside of the window.
        late: seconds by which the generator itself was behind when it sent, at the worst.
    """

    offered: float = 0.0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    late: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Seconds within which so many of the answers came; a failure counts as one that never came."""
        everything = self.latencies + [math.inf] * self.errors.total()
        return percentile(everything, percent) if everything else math.nan


async def closed_loop(send: Send, pictures: Sequence[bytes], *, in_flight: int, seconds: float) -> Outcome:
    """As fast as it answers with ``in_flight`` unanswered.

    The window begins when about that many are answered, and lasts ``seconds`` and as many answers again: so it is
    never shorter than one answer takes, however slow that is, and neither filling nor draining counts. It goes from
    the end of a batch to the end of another one: `pause_near`.
    """
    source, errors = itertools.cycle(pictures), Counter[str]()
    times: list[float] = []
    took: list[float] = []
    began, last = 0.0, 0

    async def caller() -> None:
        nonlocal began, last
        while not last and errors.total() <= MOST_ERRORS:
            sent = time.perf_counter()
            if error := await _failure(send, next(source)):
                errors[error] += 1
                continue
            times.append(time.perf_counter())
            took.append(times[-1] - sent)
            if len(times) == in_flight:
                began = times[-1]
            elif not last and began and times[-1] - began >= seconds and len(times) >= 2 * in_flight:
                last = len(times)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    if errors:
        raise RuntimeError(f"{len(times)} answers; errors: {dict(errors)}")
    # A third: the two cannot meet.
    first, end = (pause_near(times, place - 1, in_flight // 3) for place in (in_flight, last))
    return Outcome(seconds=times[end] - times[first], latencies=took[first + 1 : end + 1], answered=len(times))


async def open_loop(send: Send, pictures: Sequence[bytes], *, rate: float, seconds: float, seed: int = 7) -> Outcome:
    """Poisson arrivals for so long; returns when all of them are answered."""
    records = await load.open_loop(
        lambda number: send(pictures[number % len(pictures)]), load.poisson(rate, seconds, seed)
    )
    outcome = Outcome(offered=rate, seconds=seconds)
    for record in records:
        _count(outcome, record.error, record.latency)
        outcome.late = max(outcome.late, record.sent - record.intended)
    return outcome


async def _failure(send: Send, picture: bytes) -> str:
    """Send it; the kind of its failure, or nothing."""
    try:
        await send(picture)
    except Exception as error:  # noqa: BLE001  (whatever a server or its client comes up with is counted)
        return load.name_of(error)
    return ""


def _count(outcome: Outcome, error: str, latency: float) -> None:
    if error:
        outcome.errors[error] += 1
    else:
        outcome.latencies.append(latency)
