"""One worker under a load that does not wait for it: throughput and latency against what is offered."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import load, ours, points
from bench.harness import in_turn, server, until
from bench.pictures import jpeg
from bench.points import Point
from bench.results import Curve, Part, Plot
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import AsyncClient
from clipfleet.schemas.keys import QueueKeys
from clipfleet.worker.config import NO_MODEL

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Sequence

    Sender = Callable[[AsyncClient], Callable[[int], Awaitable[Any]]]

IN_FLIGHT = 128
DIFFERENT = 32
COMPARED = 16
CONNECT = 32  # requests of a new client before those that count: it is connected then, and its inbox is there


def run(options: argparse.Namespace) -> Part:
    """No-ops and pictures, at shares of what the same client gets out of the fleet in a closed loop."""
    part = Part(
        "load",
        "Under load",
        "One worker; requests arrive at random moments (Poisson) from one producer process (`AsyncClient`), at "
        "shares of what the same process gets in a closed loop. Above 100 % the queue grows until requests are "
        "refused or the load ends. The picture worker runs with its defaults (`max_delay` 10 "
        "ms), 640 x 480 JPEG; the no-op worker with `max_delay` 0. Percentiles are of the requests of all rounds "
        "together. The cosine is the lowest between vectors of the same pictures one by one and in batches.",
    )
    pictures = [jpeg(number) for number in range(DIFFERENT)]

    def echo(client: AsyncClient) -> Callable[[int], Awaitable[Any]]:
        return lambda _: client.run("echo", {"data": b"x" * 32})

    def picture(client: AsyncClient) -> Callable[[int], Awaitable[Any]]:
        return lambda number: client.embed_image(pictures[number % DIFFERENT])

    quiet = {"model": NO_MODEL, "max_delay_ms": 0}
    busy = {"model": options.model, "max_delay_ms": 10}
    _one(part, options, "no-op", echo, kind=ours.SETTLED, settings=quiet, closed=options.count // 2)
    _one(part, options, "picture", picture, kind=ours.CALLED, settings=busy, closed=options.pictures)
    return part


def _one(
    part: Part,
    options: argparse.Namespace,
    name: str,
    sender: Sender,
    *,
    kind: int,
    settings: dict[str, Any],
    closed: int,
) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    has_vectors = settings["model"] != NO_MODEL
    at = {share: Point(f"{name}: {share:.0%} of that", "open loop, Poisson") for share in options.shares}
    with server(port) as redis_client, tempfile.TemporaryDirectory() as folder:
        batches = ours.Batches(Path(folder) / "batches")
        with ours.worker(url, Path(folder) / "batches", **settings):
            until(lambda: redis_client.zcard(QueueKeys("clip").workers), "a worker", 120)
            most = Point(f"{name}: as much as goes", f"closed loop, {IN_FLIGHT} in flight")
            load.run(closed_loop(url, sender, closed // 4))
            cosine = load.run(agreement(url, sender)) if has_vectors else None
            for _ in range(options.rounds):
                records = load.run(closed_loop(url, sender, closed, lambda: batches.new(kind)))
                most.take(records, batches.new(kind))

            def turn(share: float) -> Callable[[int], None]:
                def once(number: int) -> None:
                    rate = most.rate.median * share
                    seconds = load.long_enough(rate, options.seconds)
                    moments = load.poisson(rate, seconds, seed=number)
                    records = load.run(open_loop(url, sender, moments, lambda: batches.new(kind)))
                    at[share].take(records, batches.new(kind), seconds)

                return once

            in_turn(options.rounds, [turn(share) for share in options.shares])
    precision = f"{settings['model']}, fp32" if has_vectors else ""
    for point in (most, *at.values()):
        point.add_to(part, precision=precision, agreement=cosine)
    got = points.rates("results", at.values())
    x = "offered requests / s"
    ms = "ms from the intended arrival"
    part.plots += [
        Plot(
            f"{name}-throughput",
            f"Throughput against load ({name})",
            x,
            "results / s",
            [got, Curve("offered", got.x, got.x)],
        ),
        Plot(
            f"{name}-latency",
            f"Latency against load ({name})",
            x,
            ms,
            [points.latencies(f"p{percent}", at.values(), percent) for percent in (50, 95, 99)],
            log_y=True,
        ),
        points.histogram(
            f"{name}-batches",
            f"Batch sizes ({name})",
            {f"at {share:.0%}": at[share] for share in _shown(options.shares)},
        ),
    ]


def _shown(shares: Sequence[float]) -> list[float]:
    """A low, a middle and a high load of all, for the histogram."""
    return [shares[index] for index in sorted({0, len(shares) // 2, len(shares) - 1})]


async def agreement(url: str, sender: Sender, queue: str = "clip") -> float:
    """Lowest cosine between the vectors of a few requests one by one, and of the same together, in batches."""
    async with AsyncClient(url, queue=queue) as client:
        send = sender(client)
        alone = [await send(number) for number in range(COMPARED)]
        together = await asyncio.gather(*(send(number) for number in range(COMPARED)))
    pairs = zip(alone, together, strict=True)
    return min(float(np.asarray(one.vector) @ np.asarray(other.vector)) for one, other in pairs)


async def closed_loop(
    url: str, sender: Sender, count: int, begins: Callable[[], Any] = int, queue: str = "clip"
) -> list[load.Record]:
    """So many requests of a client of its own, `IN_FLIGHT` at a time; ``begins`` is called when it is connected."""
    async with AsyncClient(url, queue=queue) as client:
        await load.closed_loop(sender(client), CONNECT, 8)
        begins()
        return await load.closed_loop(sender(client), count, IN_FLIGHT)


async def open_loop(
    url: str, sender: Sender, moments: list[float], begins: Callable[[], Any] = int, queue: str = "clip"
) -> list[load.Record]:
    """Requests at these moments, of a client of its own; ``begins`` is called when it is connected."""
    async with AsyncClient(url, queue=queue) as client:
        await load.closed_loop(sender(client), CONNECT, 8)
        begins()
        return await load.open_loop(sender(client), moments)
