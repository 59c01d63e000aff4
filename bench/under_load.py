"""One worker under a load that does not wait for it: throughput and latency against what is offered."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import load, ours
from bench.harness import server, until
from bench.pictures import jpeg
from bench.results import Curve, Part, Plot
from bench.stats import mean_batch
from bench.workers import note
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import AsyncClient
from clipfleet.schemas.keys import QueueKeys

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

SHARES = (0.05, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.1)
DIFFERENT = 32
PERCENTILES = ("p50", "p95", "p99")


def run(options: argparse.Namespace) -> Part:
    """No-ops and pictures, at shares of what the same client gets out of the fleet in a closed loop."""
    part = Part(
        "load",
        "Under load",
        "One worker; requests arrive at random moments (Poisson) from one producer process (`AsyncClient`), at shares "
        "of what the same process gets in a closed loop. Above 100 % the queue grows until requests are refused or "
        "the load ends. The picture worker runs with its defaults (batches of up to 64, `max_delay` 10 ms), 640 x 480 "
        "JPEG; the no-op worker with `max_delay` 0.",
    )
    pictures = [jpeg(number) for number in range(DIFFERENT)]

    def echo(client: AsyncClient) -> Callable[[int], Awaitable[Any]]:
        return lambda _: client.run("echo", {"data": b"x" * 32})

    def picture(client: AsyncClient) -> Callable[[int], Awaitable[Any]]:
        return lambda number: client.embed_image(pictures[number % DIFFERENT])

    _one(part, options, "no-op", echo, ours.SETTLED, 4_000, {"model": "none", "max_delay_ms": 0})
    _one(part, options, "picture", picture, ours.CALLED, 600, {"model": options.model, "max_delay_ms": 10})
    return part


def _one(
    part: Part,
    options: argparse.Namespace,
    name: str,
    sender: Callable[[AsyncClient], Callable[[int], Awaitable[Any]]],
    kind: int,
    closed: int,
    settings: dict[str, Any],
) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    precision = "" if settings["model"] == "none" else f"{settings['model']}, fp32"
    got = Curve("results", [], [])
    lines = {each: Curve(each, [], []) for each in PERCENTILES}
    histograms: dict[float, dict[int, int]] = {}
    with server(port) as redis_client, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches"
        batches = ours.Batches(file)
        with ours.worker(url, file, **settings):
            until(lambda: redis_client.zcard(QueueKeys("clip").workers), "a worker", 120)
            load.run(_closed(url, sender, closed // 4))
            batches.new(kind)
            most = load.run(_closed(url, sender, closed))
            _add(part, f"{name}: as much as goes", most, batches.new(kind), "closed loop, 128 in flight", precision)
            for share in SHARES:
                rate = most.rate * share
                moments = load.poisson(rate, options.seconds, seed=int(share * 100))
                outcome = load.run(_open(url, sender, moments, rate))
                histograms[share] = batches.new(kind)
                arrival = f"open loop, Poisson, {rate:,.0f}/s"
                _add(part, f"{name}: {share:.0%} of that", outcome, histograms[share], arrival, precision)
                got.x.append(rate)
                got.y.append(outcome.rate)
                for each, curve in lines.items():
                    curve.x.append(rate)
                    curve.y.append(getattr(outcome, each) * 1000)
    offered = Curve("offered", got.x, got.x)
    x = "offered requests / s"
    part.plots += [
        Plot(f"{name}-throughput", f"Throughput against offered load ({name})", x, "results / s", [got, offered]),
        Plot(
            f"{name}-latency",
            f"Latency against offered load ({name})",
            x,
            "ms from the intended arrival",
            [*lines.values()],
            log_y=True,
        ),
        _histogram(name, histograms),
    ]


def _histogram(name: str, histograms: dict[float, dict[int, int]]) -> Plot:
    """Share of all requests that were in a batch of that size, at a low, a middle and a high load."""
    curves = []
    for share in (SHARES[1], SHARES[4], SHARES[-2]):
        sizes = histograms[share]
        items = sum(size * count for size, count in sizes.items()) or 1
        label = f"{share:.0%} of capacity, mean {mean_batch(sizes):.1f}"
        curves.append(
            Curve(label, [float(size) for size in sizes], [size * count / items * 100 for size, count in sizes.items()])
        )
    return Plot(
        f"{name}-batches", f"Batch sizes ({name})", "requests in a batch", "% of all requests", curves, bars=True
    )


def _add(part: Part, name: str, outcome: load.Outcome, sizes: dict[int, int], arrival: str, precision: str) -> None:
    part.add(
        name,
        [outcome.rate],
        "requests/s",
        arrival=arrival,
        batches=sizes,
        p50_ms=outcome.p50 * 1000,
        p99_ms=outcome.p99 * 1000,
        precision=precision,
        note=note(outcome),
    )


async def _closed(url: str, sender: Any, count: int) -> load.Outcome:
    async with AsyncClient(url) as client:
        return load.Outcome.of(await load.closed_loop(sender(client), count, 128))


async def _open(url: str, sender: Any, moments: list[float], offered: float) -> load.Outcome:
    async with AsyncClient(url) as client:
        await load.closed_loop(sender(client), 32, 8)  # connected, and its inbox there
        return load.Outcome.of(await load.open_loop(sender(client), moments), offered)
