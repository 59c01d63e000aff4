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
from bench.stats import percentile

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

    The window begins when that many are answered, and lasts ``seconds`` and as many answers again: so it is never
    shorter than one answer takes, however slow that is, and neither filling nor draining counts.
    """
    outcome, source = Outcome(), itertools.cycle(pictures)
    began = 0.0

    async def caller() -> None:
        nonlocal began
        while not outcome.seconds:
            sent = time.perf_counter()
            error = await _failure(send, next(source))
            now = time.perf_counter()
            outcome.answered += not error
            if outcome.seconds:
                return
            if began or error:
                _count(outcome, error, now - sent)
            if outcome.errors.total() > MOST_ERRORS:
                outcome.seconds = now - (began or sent)
            elif not began and outcome.answered >= in_flight:
                began = now
            elif began and now - began >= seconds and len(outcome.latencies) >= in_flight:
                outcome.seconds = now - began

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    if outcome.errors:
        raise RuntimeError(f"{outcome.answered} answers; errors: {dict(outcome.errors)}")
    return outcome


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
