"""One, two and four workers: no-ops as quickly as they go, and how full batches are at a given load."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import load, ours, points
from bench.harness import cpu_s, in_turn, server, until
from bench.points import Point
from bench.results import Curve, Part, Plot
from bench.stats import Spread, percentile
from bench.under_load import agreement, closed_loop, open_loop
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import AsyncClient, Client
from clipfleet.schemas.keys import QueueKeys
from clipfleet.worker.config import NO_MODEL

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Iterator

    import redis

FLEETS = (1, 2, 4)
SHARES = (0.2, 0.5, 0.8)
IN_FLIGHT, DATA = 256, b"x" * 32
TEXTS = ("a red heart", "a dog on a beach", "a black car at night", "two people who laugh")


def run(options: argparse.Namespace) -> Part:
    """The same producer before fleets of several sizes, each on a queue of its own."""
    part = Part(
        "workers",
        "Fleets of one, two and four workers",
        f"No-ops from one producer process with {IN_FLIGHT} in flight. Then texts with the demo model in an open "
        "loop, at the same rates for all fleets: with more workers a batch is filled by fewer requests. All "
        "workers share the cores of this machine with the producer and Redis, so more of them cannot be quicker "
        "than those allow. The cosine is the lowest between vectors of the same texts one by one and in batches.",
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
            queue, batches, pids = stack.enter_context(_fleet(client, size, NO_MODEL, Path(folder)))
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
        part.ratio(f"processor time: {_workers(size)} / one", costs[size], costs[1], target="<= 1.1", arrival=arrival)
    spreads = [Spread.of(rates[size]) for size in FLEETS]
    curve = Curve(
        "",
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
    url = f"redis://127.0.0.1:{port}"
    at = {
        (size, share): Point(f"{_workers(size)}: texts at {share:.0%} of what one can do", "open loop, Poisson")
        for size in FLEETS
        for share in SHARES
    }
    costs: dict[tuple[int, float], list[float]] = {place: [] for place in at}
    with server(port) as client, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fleets = {size: stack.enter_context(_fleet(client, size, "demo", Path(folder))) for size in FLEETS}
        load.run(closed_loop(url, _texts, 200, queue=fleets[1][0]))
        cosine = load.run(agreement(url, _texts, fleets[1][0]))
        most = load.Outcome.of(load.run(closed_loop(url, _texts, 1_000, queue=fleets[1][0]))).rate

        def turn(size: int, share: float) -> Callable[[int], None]:
            queue, batches, pids = fleets[size]

            def once(number: int) -> None:
                seconds = load.long_enough(most * share, options.seconds)
                moments = load.poisson(most * share, seconds, seed=number)
                before = 0.0

                def begins() -> None:
                    nonlocal before
                    batches.new(ours.CALLED)
                    before = cpu_s(*pids)

                records = load.run(open_loop(url, _texts, moments, begins, queue))
                costs[size, share].append((cpu_s(*pids) - before) / len(moments) * 1e6)
                at[size, share].take(records, batches.new(ours.CALLED), seconds)

            return once

        in_turn(options.rounds, [turn(size, share) for share in SHARES for size in FLEETS])
    for point in at.values():
        point.add_to(part, precision="demo, fp32", agreement=cosine)
    for place, spent in costs.items():
        part.add(f"{at[place].name}: processor time of the workers", spent, "us/request", arrival=at[place].arrival)
    x = "offered requests / s"
    lines = {_workers(size): [at[size, share] for share in SHARES] for size in FLEETS}
    full = [points.batches(label, line) for label, line in lines.items()]
    slow = [points.latencies(label, line, 99) for label, line in lines.items()]
    part.plots += [
        Plot("workers-batch", "How full batches are (texts, demo model)", x, "mean batch", full),
        Plot("workers-p99", "p99 with several workers (texts, demo model)", x, "ms", slow),
    ]


def _texts(client: AsyncClient) -> Callable[[int], Awaitable[Any]]:
    return lambda number: client.embed_text(f"{TEXTS[number % len(TEXTS)]} {number}")


def _workers(size: int) -> str:
    return {1: "one worker", 2: "two workers", 4: "four workers"}[size]
