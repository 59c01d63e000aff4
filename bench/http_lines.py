"""What the comparison of HTTP servers found, as lines of the page."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.results import Figure
from bench.stats import percentile, ratios

if TYPE_CHECKING:
    from bench.http_load import Outcome

TARGET = ">= 1.2"
PEERS = {"litserve": "LitServe 0.2.19", "mosec": "mosec 0.9.8", "ray": "Ray Serve 2.60.0", "bentoml": "BentoML 1.4.40"}
OURS = {"clipfleet": "clipfleet over Redis"}
IN_FLIGHT, SHARE = 64, 0.7  # of the closed loop; of its rate, in the open one


@dataclass
class Found:
    """What the rounds of one way gave; ``why`` it could not be run, when it could not."""

    saturation: list[float] = field(default_factory=list)
    opened: list[Outcome] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    cosine: float = 1.0
    why: str = ""


def lines(found: dict[str, Found], limits: tuple[float, ...]) -> list[Figure]:
    """A line of throughput and one of latency for each way, and ours against the best of the others."""
    made = [Figure("what the cores allow", limits, "pictures/s", note="one picture decoded and one embedded, alone")]
    for name, one in found.items():
        title = (PEERS | OURS)[name]
        made += [Figure(title, why=one.why)] if one.why else [_throughput(title, one), _latency(title, one)]
    made.append(Figure("clipfleet through its gateway", why="the gateway is not built yet"))
    peers = {name: one for name, one in found.items() if name in PEERS and not one.why}
    if not peers:
        return made
    best = max(peers, key=lambda name: statistics.median(peers[name].saturation))
    made.append(Figure(f"what the cores allow / {PEERS[best]}, the best", ratios(limits, peers[best].saturation), "x"))
    for name, title in OURS.items():
        if name in found and not found[name].why:
            made += _against(title, found[name], peers, best)
    return made


def _throughput(title: str, one: Found) -> Figure:
    return Figure(
        f"{title}, saturated",
        tuple(one.saturation),
        "pictures/s",
        arrival=f"closed loop, {IN_FLIGHT} in flight",
        precision="fp32",
        agreement=one.cosine,
        note="cosine to the model called here; "
        f"{statistics.median(one.cpu_ms):.1f} ms of a core for each, with the load's own",
    )


def _latency(title: str, one: Found) -> Figure:
    together = sorted(latency for each in one.opened for latency in each.latencies)
    failed = sum((each.errors for each in one.opened), start=Counter[str]())
    behind = 1000 * max(each.late for each in one.opened)
    offered = statistics.median(each.offered for each in one.opened)
    return Figure(
        f"{title}, p99 at {SHARE:.0%} of it",
        tuple(1000 * each.percentile(99) for each in one.opened),
        "ms",
        arrival=f"open loop, Poisson, {offered:.1f} a second",
        p50_ms=1000 * percentile(together, 50) if together else None,
        p99_ms=1000 * percentile(together, 99) if together else None,
        precision="fp32",
        note=f"{len(together)} answers; errors: {dict(failed) or 'none'}; the load was at most {behind:.0f} ms behind",
    )


def _against(title: str, ours: Found, peers: dict[str, Found], best: str) -> list[Figure]:
    quick = min(peers, key=lambda name: statistics.median(each.percentile(99) for each in peers[name].opened))
    cheap = min(peers, key=lambda name: statistics.median(peers[name].cpu_ms))
    tails = [[each.percentile(99) for each in one.opened] for one in (peers[quick], ours)]
    return [
        Figure(f"{title} / {PEERS[best]}, the best", ratios(ours.saturation, peers[best].saturation), "x", TARGET),
        Figure(f"p99 of {PEERS[quick]}, the lowest / {title}", ratios(*tails), "x", ">= 1"),
        Figure(f"CPU of {PEERS[cheap]}, the least / {title}", ratios(peers[cheap].cpu_ms, ours.cpu_ms), "x"),
    ]
