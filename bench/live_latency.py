"""Live text queries beside a bulk run: what p99 becomes, against one batch of bulk.

Once with vectors alone (``embed_text`` beside ``embed_image``), once with Milvus Lite (``search`` beside
``index_image``).

python -m bench.live_latency URL KIND SECONDS     the bulk run: as fast as the queue takes it; its batches as JSON
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import process, server
from bench.pictures import jpeg
from bench.results import Part
from bench.stats import percentile
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import AsyncClient, Client, requests
from clipfleet.schemas.keys import QueueKeys
from clipfleet.store.lite import LiteServer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from redis import Redis

RATE = 20.0  # live queries a second, with exponential gaps: those who ask know nothing of each other
BULK_BATCH_MS = 100.0
DIFFERENT = 20
LANE = QueueKeys("clip").lanes[1]


def run(options: argparse.Namespace) -> Part:
    part = Part(
        "live",
        "Live queries beside a bulk run",
        f"Text queries, {RATE:.0f} a second at random moments (an open loop: each is timed from when it was meant to be"
        " asked), with and without a bulk run that keeps the queue full. The aim is a wait of one bulk batch at most,"
        " so a p99 beside it of no more than the p99 without it and one bulk batch.",
    )
    measure(part, options, "embed")
    if importlib.util.find_spec("milvus_lite") is not None:
        with tempfile.TemporaryDirectory() as folder, LiteServer(Path(folder)) as lite:
            measure(part, options, "search", "--milvus-uri", lite.uri)
    else:
        part.skip("search beside index_image", "there is no Milvus Lite here")
    return part


def measure(part: Part, options: argparse.Namespace, kind: str, *flags: str) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    worker = [sys.executable, "-m", "clipfleet.cli", "worker", "--redis-url", url, "--model", options.model]
    worker += ["--bulk-batch-ms", str(BULK_BATCH_MS), *flags]
    seconds = options.live_seconds
    with server(port) as client, process(*worker), Client(url, wait_for_worker=True) as fleet:
        fleet.embed_text("warm", timeout=120)
        with bulk_run(url, kind, 5.0) as warm:  # the worker learns what a batch costs, and there is something to find
            warm.communicate(timeout=120)
        alone: list[list[float]] = []
        beside: list[list[float]] = []
        batches: list[tuple[float, int]] = []
        late: list[float] = []
        for number in range(options.rounds):
            for bulk in (False, True) if number % 2 else (True, False):
                if bulk:
                    with bulk_run(url, kind, seconds + 5.0) as running:
                        backlog(client)
                        beside.append(ask(url, kind, seconds, number, late))
                        out, _ = running.communicate(timeout=120)
                    batches += json.loads(out)
                else:
                    alone.append(ask(url, kind, seconds, number, late))
    report(part, f"{options.model}, {kind}", alone, beside, batches)
    own = ", ".join(f"p{percent} {percentile(late, percent):.1f} ms" for percent in (50, 99))
    part.figures[-1].note = f"of that the asking side itself was late by {own}"


def backlog(client: Redis) -> None:
    """Wait until the bulk run has more in the queue than the worker takes."""
    give_up = time.monotonic() + 30
    while client.xlen(LANE) < 200:
        if time.monotonic() > give_up:
            raise TimeoutError("no bulk backlog")
        time.sleep(0.01)  # between two looks at another process's work


def report(
    part: Part, what: str, alone: list[list[float]], beside: list[list[float]], batches: list[tuple[float, int]]
) -> None:
    times = [ms for ms, _ in batches]
    sizes = dict(Counter(size for _, size in batches))
    spread = [percentile(times, percent) for percent in (1, 50, 99)]
    part.add(f"{what}: a batch of the bulk run", spread, "ms", batches=sizes, note="percentiles 1, 50 and 99 of all")
    for name, rounds in (("without", alone), ("beside it", beside)):
        part.add(
            f"{what}: p99 of live queries {name}",
            [percentile(one, 99) for one in rounds],
            "ms",
            arrival=f"open loop, {RATE:.0f}/s",
            p50_ms=percentile(list(itertools.chain(*rounds)), 50),
            p99_ms=percentile(list(itertools.chain(*rounds)), 99),
        )
    p99_alone, p99_beside = (percentile(list(itertools.chain(*rounds)), 99) for rounds in (alone, beside))
    for limit, ms in ((f"{BULK_BATCH_MS:.0f} ms", BULK_BATCH_MS), ("a bulk batch's p99", percentile(times, 99))):
        name = f"{what}: p99 beside / (p99 without + {limit})"
        part.add(name, [p99_beside / (p99_alone + ms)], "x", target="<= 1")


def ask(url: str, kind: str, seconds: float, seed: int, late: list[float]) -> list[float]:
    """Latencies of live queries in ms, each from when it was to be asked; how ``late`` it was asked is part of it."""
    gaps = np.random.default_rng(seed).exponential(1 / RATE, int(seconds * RATE))

    async def main() -> list[float]:
        async with AsyncClient(url) as fleet:
            await fleet.embed_text("warm")  # a service has its connections
            began = time.perf_counter()

            async def one(at: float, text: str) -> float:
                await asyncio.sleep(began + at - time.perf_counter())
                late.append((time.perf_counter() - began - at) * 1000.0)
                await (fleet.embed_text(text) if kind == "embed" else fleet.search(text))
                return (time.perf_counter() - began - at) * 1000.0

            times = itertools.accumulate(gaps)
            return await asyncio.gather(*(one(float(at), f"a query of number {n}") for n, at in enumerate(times)))

    return asyncio.run(main())


@contextmanager
def bulk_run(url: str, kind: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.live_latency", url, kind, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.terminate()


def push(url: str, kind: str, seconds: float) -> list[tuple[float, int]]:
    """Send pictures for so long; milliseconds and size of each batch that they ran in."""
    pictures = [jpeg(number) for number in range(DIFFERENT)]
    give_up = time.monotonic() + seconds
    endless = itertools.takewhile(lambda _: time.monotonic() < give_up, enumerate(itertools.cycle(pictures)))
    run = f"{time.time():.0f}"
    asked = (
        requests.embed_image(one) if kind == "embed" else requests.index_image(one, id=f"{run}-{number}")
        for number, one in endless
    )
    found: list[tuple[float, int]] = []
    with Client(url, lane="bulk", wait_for_worker=True) as fleet:
        for result in fleet.map(asked, max_in_flight=512, ordered=False):
            outcome: Any = result
            assert outcome.ok, outcome.error
            found.append((outcome.timing["run"], outcome.notes["batch_size"]))
    # Each batch once, and not once an item.
    return sorted(set(found))


if __name__ == "__main__":
    print(json.dumps(push(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
