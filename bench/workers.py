"""One, two and four workers: no-ops as quickly as they go, and how full batches are at a given load."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import load, ours
from bench.harness import cpu_s, in_turn, server, until
from bench.results import Curve, Part, Plot
from bench.stats import Spread, mean_batch, percentile
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import AsyncClient, Client
from clipfleet.schemas.keys import QueueKeys

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    import redis

FLEETS = (1, 2, 4)
IN_FLIGHT, DATA = 256, b"x" * 32
TEXTS = ("a red heart", "a dog on a beach", "a black car at night", "two people who laugh")


def run(options: argparse.Namespace) -> Part:
    """The same producer before fleets of several sizes, each on a queue of its own."""
    part = Part(
        "workers",
        "Fleets of one, two and four workers",
        f"No-ops from one producer process with {IN_FLIGHT} in flight. Then texts with the demo model in an open loop, "
        "at the same rates for all fleets: with more workers a batch is filled by fewer requests. All workers share "
        "the cores of this machine with the producer and Redis, so more of them cannot be quicker than those allow.",
    )
    _no_ops(part, options)
    _fill(part, options)
    return part


@contextmanager
def _fleet(client: redis.Redis, size: int, model: str, folder: Path) -> Iterator[tuple[str, ours.Batches, list[int]]]:
    """Name of a queue with ``size`` workers, the sizes of their batches, their process ids."""
    queue = f"{model}{size}"
    url = f"redis://127.0.0.1:{client.get_connection_kwargs()['port']}"
    file = folder / queue
    with ExitStack() as stack:
        settings: dict[str, Any] = {"queue": queue, "model": model, "processes": 1}
        workers = [stack.enter_context(ours.worker(url, file, **settings)) for _ in range(size)]
        until(lambda: client.zcard(QueueKeys(queue).workers) == size, f"{size} workers of {queue}", 120)
        yield queue, ours.Batches(file), [worker.pid for worker in workers]


def _no_ops(part: Part, options: argparse.Namespace) -> None:
    rates: dict[int, list[float]] = {}
    costs: dict[int, list[float]] = {}
    latencies: dict[int, list[float]] = {}
    sizes: dict[int, dict[int, int]] = {size: {} for size in FLEETS}
    port = free_port()
    with server(port) as client, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def turn(size: int) -> Callable[[int], None]:
            queue, batches, pids = stack.enter_context(_fleet(client, size, "none", Path(folder)))
            fleet = stack.enter_context(Client(f"redis://127.0.0.1:{port}", queue=queue))

            def once(_: int) -> None:
                batches.new(ours.SETTLED)
                before = cpu_s(*pids)
                seconds, found = ours.produce(fleet, options.count, IN_FLIGHT, DATA)
                rates.setdefault(size, []).append(options.count / seconds)
                costs.setdefault(size, []).append((cpu_s(*pids) - before) / options.count * 1e6)
                latencies.setdefault(size, []).extend(found)
                for each, number in batches.new(ours.SETTLED).items():
                    sizes[size][each] = sizes[size].get(each, 0) + number

            return once

        in_turn(options.rounds, [turn(size) for size in FLEETS])
    arrival = f"closed loop, {IN_FLIGHT} in flight"
    for size in FLEETS:
        part.add(
            f"{_workers(size)}: no-op requests",
            rates[size],
            "requests/s",
            arrival=arrival,
            batches=dict(sorted(sizes[size].items())),
            p50_ms=percentile(latencies[size], 50) * 1000,
            p99_ms=percentile(latencies[size], 99) * 1000,
        )
    for size in FLEETS:
        part.add(f"{_workers(size)}: processor time of all of them", costs[size], "us/request", arrival=arrival)
    for size in FLEETS[1:]:
        part.ratio(f"processor time: {_workers(size)} / one", costs[size], costs[1], arrival=arrival)
    spreads = [Spread.of(rates[size]) for size in FLEETS]
    curve = Curve(
        "no-op",
        [float(size) for size in FLEETS],
        [s.median for s in spreads],
        [s.low for s in spreads],
        [s.high for s in spreads],
    )
    part.plots.append(
        Plot("workers", "No-ops with several workers on this machine", "workers", "requests / s", [curve])
    )


def _fill(part: Part, options: argparse.Namespace) -> None:
    """Mean batch of the model against load."""
    port = free_port()
    seconds = options.seconds
    curves = {size: Curve(_workers(size), [], []) for size in FLEETS}
    slow = {size: Curve(_workers(size), [], []) for size in FLEETS}
    with server(port) as client, tempfile.TemporaryDirectory() as folder:
        most = 0.0
        for size in FLEETS:
            with _fleet(client, size, "demo", Path(folder)) as (queue, batches, _):
                url = f"redis://127.0.0.1:{port}"
                most = most or load.run(_most(url, queue)).rate
                for share in (0.05, 0.2, 0.5, 0.8):
                    batches.new(ours.CALLED)
                    outcome = load.run(_texts(url, queue, load.poisson(most * share, seconds), most * share))
                    found = batches.new(ours.CALLED)
                    curves[size].x.append(outcome.offered)
                    curves[size].y.append(mean_batch(found))
                    slow[size].x.append(outcome.offered)
                    slow[size].y.append(outcome.p99 * 1000)
                    part.add(
                        f"{_workers(size)}: texts at {share:.0%} of what one can do",
                        [outcome.rate],
                        "requests/s",
                        arrival=f"open loop, Poisson, {outcome.offered:.0f}/s",
                        batches=found,
                        p50_ms=outcome.p50 * 1000,
                        p99_ms=outcome.p99 * 1000,
                        precision="fp32",
                        note=note(outcome),
                    )
    part.plots.append(
        Plot(
            "workers-batch",
            "How full batches are (texts, demo model)",
            "offered requests / s",
            "mean batch",
            [*curves.values()],
        )
    )
    part.plots.append(
        Plot(
            "workers-p99",
            "p99 with several workers (texts, demo model)",
            "offered requests / s",
            "ms",
            [*slow.values()],
        )
    )


async def _most(url: str, queue: str) -> load.Outcome:
    """What the first fleet can do."""
    async with AsyncClient(url, queue=queue) as client:

        async def send(number: int) -> None:
            await client.embed_text(f"{TEXTS[number % len(TEXTS)]} {number}")

        await load.closed_loop(send, 200, 64)
        return load.Outcome.of(await load.closed_loop(send, 2_000, 128))


async def _texts(url: str, queue: str, moments: list[float], offered: float) -> load.Outcome:
    async with AsyncClient(url, queue=queue) as client:

        async def send(number: int) -> None:
            await client.embed_text(f"{TEXTS[number % len(TEXTS)]} {number}")

        await load.closed_loop(send, 32, 8)
        return load.Outcome.of(await load.open_loop(send, moments), offered)


def note(outcome: load.Outcome) -> str:
    """What is to be known about an open loop: what failed, and whether the generator kept its time."""
    said = [f"{count} {name}" for name, count in sorted(outcome.failed.items())]
    if outcome.late > max(0.005, outcome.p50 / 4):
        said.append(f"the generator was {outcome.late * 1000:.0f} ms late")
    return ", ".join(said)


def _workers(size: int) -> str:
    return {1: "one worker", 2: "two workers", 4: "four workers"}[size]
