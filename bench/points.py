"""One load, several rounds of it: a line of the table and a point of each curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.load import Outcome
from bench.results import Curve, Plot
from bench.stats import Spread, mean_batch, percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.load import Record
    from bench.results import Figure, Part

LATE_S = 0.005  # a generator that is later than this, and than a quarter of the median, is worth a word


class Point:
    """What all rounds of one load have found.

    Args:
        name: of the load.
        arrival: how its requests come.
    """

    def __init__(self, name: str, arrival: str) -> None:
        self.name = name
        self.arrival = arrival
        self.sizes: dict[int, int] = {}
        self._offered: list[float] = []
        self._outcomes: list[Outcome] = []
        self._latencies: list[float] = []

    def take(self, records: Sequence[Record], sizes: dict[int, int], seconds: float = 0.0) -> None:
        """A round: its requests, the sizes of its batches, and, of an open loop, how long requests arrived."""
        outcome = Outcome.of(records, seconds)
        self._outcomes.append(outcome)
        self._offered.append(len(records) / seconds if seconds else 0.0)
        self._latencies += outcome.latencies
        for size, count in sizes.items():
            self.sizes[size] = self.sizes.get(size, 0) + count

    @property
    def offered(self) -> float:
        """Requests per second, of all rounds."""
        return sum(self._offered) / len(self._offered)

    @property
    def rate(self) -> Spread:
        """Results per second."""
        return Spread.of([outcome.rate for outcome in self._outcomes])

    @property
    def mean_batch(self) -> float:
        return mean_batch(self.sizes)

    def ms(self, percent: float) -> float:
        """A percentile of the latencies of all rounds together; 0 without a result."""
        return percentile(self._latencies, percent) * 1000 if self._latencies else 0.0

    def note(self) -> str:
        """What failed, and whether the generator kept its time."""
        failed: dict[str, int] = {}
        for outcome in self._outcomes:
            for error, count in outcome.failed.items():
                failed[error] = failed.get(error, 0) + count
        said = [f"{count} {error}" for error, count in sorted(failed.items())]
        late = max(outcome.late for outcome in self._outcomes)
        if late > max(LATE_S, self.ms(50) / 4000):
            said.append(f"the generator was up to {late * 1000:.0f} ms late")
        return ", ".join(said)

    def add_to(self, part: Part, **more: Any) -> Figure:
        """Its line."""
        return part.add(
            self.name,
            [outcome.rate for outcome in self._outcomes],
            "requests/s",
            arrival=f"{self.arrival}, {self.offered:,.0f}/s" if self.offered else self.arrival,
            batches=dict(sorted(self.sizes.items())),
            p50_ms=self.ms(50),
            p99_ms=self.ms(99),
            note=self.note(),
            **more,
        )


def rates(label: str, points: Iterable[Point]) -> Curve:
    """Results against what was offered, with the rounds as a band."""
    each = list(points)
    spreads = [point.rate for point in each]
    return Curve(
        label,
        [p.offered for p in each],
        [s.median for s in spreads],
        [s.low for s in spreads],
        [s.high for s in spreads],
    )


def latencies(label: str, points: Iterable[Point], percent: float) -> Curve:
    """Milliseconds against what was offered."""
    each = list(points)
    return Curve(label, [point.offered for point in each], [point.ms(percent) for point in each])


def batches(label: str, points: Iterable[Point]) -> Curve:
    """Mean batch against what was offered."""
    each = list(points)
    return Curve(label, [point.offered for point in each], [point.mean_batch for point in each])


def histogram(name: str, title: str, of: Mapping[str, Point]) -> Plot:
    """Percent of all requests that were in a batch of each size; sizes in powers of two, as they reach hundreds."""
    most = max((size for point in of.values() for size in point.sizes), default=1)
    edges = [2**power for power in range((most - 1).bit_length() + 1)]  # the largest size of each bar
    curves = []
    for label, point in of.items():
        items = sum(size * count for size, count in point.sizes.items()) or 1
        shares = [0.0] * len(edges)
        for size, count in point.sizes.items():
            shares[(size - 1).bit_length()] += size * count / items * 100
        curves.append(
            Curve(f"{label}, mean {point.mean_batch:.1f}", [float(each) for each in range(len(edges))], shares)
        )
    ticks = [str(edge) if edge < 3 else f"{edge // 2 + 1}-{edge}" for edge in edges]
    return Plot(name, title, "requests in a batch", "% of all requests", curves, bars=True, ticks=ticks)
