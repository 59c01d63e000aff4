"""Live text queries beside a bulk run: what p99 becomes, against one batch of bulk.

Once with vectors alone (``embed_text`` beside ``embed_image``), once with a store (``search`` beside ``index_image``):
Milvus Lite, unless ``--milvus-uri`` names a Milvus.

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
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench import stores
from bench.harness import cpu_s, process, server, until
from bench.pictures import jpeg
from bench.results import Part
from bench.stats import percentile
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import AsyncClient, Client, requests
from clipfleet.schemas.keys import QueueKeys
from clipfleet.store import Store, StoreConfig
from clipfleet.store.lite import LiteServer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from redis import Redis

RATE = 20.0  # live queries a second, with exponential gaps: those who ask know nothing of each other
BULK_BATCH_MS = 100.0
DIFFERENT = 20
WARM_S = 5.0
COLLECTION = "bench_live"
LANE = QueueKeys("clip").lanes[1]


class Rounds(NamedTuple):
    """What was measured of one kind of query.

    Attributes:
        alone, beside: milliseconds of each query, by round.
        batches: of the bulk run: milliseconds in the device, and to the acknowledged write; size.
        late: milliseconds by which queries were asked late.
        stages: of the queries beside the bulk run, what their time went into, by name.
    """

    alone: list[list[float]]
    beside: list[list[float]]
    batches: list[tuple[float, float, int]]
    late: list[float]
    stages: dict[str, list[float]]


class Place(NamedTuple):
    """Where the rows are.

    Attributes:
        name: for the page.
        uri: of the Milvus; empty: there is none.
        pid: of its process, if that is here.
    """

    name: str
    uri: str = ""
    pid: int | None = None


def run(options: argparse.Namespace) -> Part:
    part = Part(
        "live",
        "Live queries beside a bulk run",
        f"Text queries, {RATE:.0f} a second at random moments (an open loop: each is timed from when it was meant to be"
        " asked), with and without a bulk run that keeps the queue full. The aim is a wait of one bulk batch at most,"
        " so a p99 beside it of no more than the p99 without it and one bulk batch.",
    )
    measure(part, options, "embed", Place(""))
    if options.milvus_uri:
        measure(part, options, "search", Place("Milvus", options.milvus_uri))
    elif importlib.util.find_spec("milvus_lite") is not None:
        with tempfile.TemporaryDirectory() as folder, LiteServer(Path(folder)) as lite:
            measure(part, options, "search", Place("Milvus Lite", lite.uri, lite.pid))
    else:
        part.skip("search beside index_image", "there is no Milvus Lite here")
    if options.full and not options.milvus_uri:
        with stores.place() as at:
            if at.why:
                part.skip("search beside index_image on a Milvus server", at.why)
            else:
                measure(part, options, "search", Place(at.what, at.uri, *at.pids))
    return part


def measure(part: Part, options: argparse.Namespace, kind: str, place: Place) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    worker = [sys.executable, "-m", "clipfleet.cli", "worker", "--redis-url", url, "--model", options.model]
    worker += ["--bulk-batch-ms", str(BULK_BATCH_MS), *(["--milvus-uri", place.uri] if place.uri else [])]
    seconds, got = options.live_seconds, Rounds([], [], [], [], defaultdict(list))
    name = f"{options.model}, {kind}{f' on {place.name}' if place.name else ''}"
    with (
        server(port) as client,
        process(*worker),
        Client(url, wait_for_worker=True) as fleet,
        rows_of(place) as rows,
    ):
        fleet.embed_text("warm", timeout=120)
        with bulk_run(
            url, kind, WARM_S
        ) as warm:  # the worker learns what a batch costs, and there is something to find
            warm.communicate(timeout=120)
        first, busy = rows(), Counter[bool]()
        for number in range(options.rounds):
            for bulk in (False, True) if number % 2 else (True, False):
                with bulk_run(url, kind, seconds + 5.0) if bulk else nullcontext() as running:
                    if running is not None:
                        backlog(client)
                    before = cpu_s(place.pid) if place.pid else 0.0
                    times = ask(url, kind, seconds, number, got.late, got.stages if bulk else {})
                    busy[bulk] += (cpu_s(place.pid) if place.pid else 0.0) - before
                    (got.beside if bulk else got.alone).append(times)
                    if running is not None:
                        out, _ = running.communicate(timeout=120)
                        got.batches.extend((on_device, in_all, size) for on_device, in_all, size in json.loads(out))
        report(part, name, got)
        notes = ["of that the asking side itself was late by " + spread_of(got.late)]
        notes += [f"beside it, {stage}: {spread_of(times)}" for stage, times in sorted(got.stages.items())]
        if place.uri:
            notes.append(f"{first:,} rows at first, {rows():,} at last")
        if place.pid:
            loads = [f"{busy[bulk] / (seconds * options.rounds):.0%}" for bulk in (False, True)]
            notes.append(f"the store kept {loads[0]} of a core busy without and {loads[1]} beside it")
    part.figures[-1].note = "; ".join(notes)


@contextmanager
def rows_of(place: Place) -> Iterator[Callable[[], int]]:
    """Asks for the number of rows of the bulk run's collection, which is thrown away afterwards."""
    if not place.uri:
        yield int
        return
    store = Store(StoreConfig(place.uri, timeout_s=60.0))
    try:
        store.drop(COLLECTION)  # what an earlier run, perhaps of another model, left when it was killed
        yield lambda: store.count(COLLECTION)
    finally:
        store.drop(COLLECTION)
        store.close()


def spread_of(times: list[float]) -> str:
    return ", ".join(f"p{percent} {percentile(times, percent):.1f} ms" for percent in (50, 99))


def backlog(client: Redis) -> None:
    """Wait until the bulk run has more in the queue than the worker takes."""
    until(lambda: client.xlen(LANE) >= 200, "no bulk backlog")


def report(part: Part, what: str, got: Rounds) -> None:
    sizes = dict(Counter(size for *_, size in got.batches))
    in_all = [ms for _, ms, _ in got.batches]
    for name, times in (("", [ms for ms, *_ in got.batches]), (" and its write", in_all)):
        if not name or "search" in what:
            spread = [percentile(times, percent) for percent in (1, 50, 99)]
            note = "percentiles 1, 50 and 99 of all"
            part.add(f"{what}: a batch of the bulk run{name}", spread, "ms", batches=sizes, note=note)
    for name, rounds in (("without", got.alone), ("beside it", got.beside)):
        part.add(
            f"{what}: p99 of live queries {name}",
            [percentile(one, 99) for one in rounds],
            "ms",
            arrival=f"open loop, {RATE:.0f}/s",
            p50_ms=percentile(list(itertools.chain(*rounds)), 50),
            p99_ms=percentile(list(itertools.chain(*rounds)), 99),
        )
    p99_alone, p99_beside = (percentile(list(itertools.chain(*rounds)), 99) for rounds in (got.alone, got.beside))
    for limit, ms in ((f"{BULK_BATCH_MS:.0f} ms", BULK_BATCH_MS), ("a bulk batch's p99", percentile(in_all, 99))):
        name = f"{what}: p99 beside / (p99 without + {limit})"
        part.add(name, [p99_beside / (p99_alone + ms)], "x", target="<= 1")


def ask(
    url: str, kind: str, seconds: float, seed: int, late: list[float], stages: dict[str, list[float]]
) -> list[float]:
    """Latencies of live queries in ms, each from when it was to be asked; how ``late`` it was asked is part of it."""
    gaps = np.random.default_rng(seed).exponential(1 / RATE, int(seconds * RATE))

    async def main() -> list[float]:
        async with AsyncClient(url) as fleet:
            await fleet.embed_text("warm")  # a service has its connections
            began = time.perf_counter()

            async def one(at: float, text: str) -> float:
                await asyncio.sleep(began + at - time.perf_counter())
                late.append((time.perf_counter() - began - at) * 1000.0)
                asked = fleet.embed_text(text) if kind == "embed" else fleet.search(text, collection=COLLECTION)
                result: Any = await asked
                for stage, ms in result.timing.items():
                    stages.setdefault(stage, []).append(ms)
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


def push(url: str, kind: str, seconds: float) -> list[tuple[float, float, int]]:
    """Send pictures for so long; of each batch the ms in the device, the ms to its acknowledged write, and its size."""
    pictures = [jpeg(number) for number in range(DIFFERENT)]
    give_up = time.monotonic() + seconds
    endless = itertools.takewhile(lambda _: time.monotonic() < give_up, enumerate(itertools.cycle(pictures)))
    run = f"{time.time():.0f}"
    asked = (
        requests.embed_image(one)
        if kind == "embed"
        else requests.index_image(one, id=f"{run}-{number}", collection=COLLECTION)
        for number, one in endless
    )
    found: list[tuple[int, float, float]] = []
    with Client(url, lane="bulk", wait_for_worker=True) as fleet:
        for result in fleet.map(asked, max_in_flight=512, ordered=False):
            outcome: Any = result
            assert outcome.ok, outcome.error
            ms = outcome.timing
            found.append((outcome.notes["batch_size"], ms["run"], ms["run"] + ms.get("store", 0.0)))
    # Each batch once, and not once an item: those of one batch say the same but for microseconds.
    batches = (list(some)[::size] for size, some in itertools.groupby(sorted(found), key=lambda item: item[0]))
    return [(on_device, in_all, size) for size, on_device, in_all in itertools.chain.from_iterable(batches)]


if __name__ == "__main__":
    print(json.dumps(push(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
