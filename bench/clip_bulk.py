"""Bulk indexing of JPEG files from disk with one worker: against what the cores allow, and whether memory stays flat.

python -m bench.clip_bulk [--model ViT-B-32/random] [--count 20000] [--quick]
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import redis

from bench.clip_fleet import Fleet, changed, fleets, per_core
from bench.clip_work import (
    BATCHES,
    Parts,
    PictureLimit,
    carry_out,
)
from bench.pictures import jpeg
from bench.pipelines import DIFFERENT
from bench.results import Figure
from bench.stats import ratios
from clipfleet.models import resolve_model
from clipfleet.schemas.keys import QueueKeys
from clipfleet.store import Store, StoreConfig
from clipfleet.store.lite import LiteServer, check_lite_version

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL, UNIT, TARGET = "ViT-B-32/random", "pictures/s", ">= 0.9"
FLAT = "<= 1.1"  # memory at the end of the run to that in its middle
SHORTEST = 4_000  # pictures; up to half of so many, libraries are still being loaded on first use
FOLDER = 500  # files of a folder
LOOK_S = 0.2


@dataclass(frozen=True)
class Sample:
    """What was to be seen at a moment: seconds, requests settled, resident bytes of producer and worker."""

    at: float
    settled: int
    producer: int
    worker: int


def run(*, model: str = MODEL, rounds: int = 1, count: int = 20_000, quick: bool = False) -> list[Figure]:
    """Measure; ``quick``: fewer pictures. The parts are measured alone before and after each round."""
    if quick:
        count = min(count, 300)
    bundle = resolve_model(model)
    pictures = [jpeg(number) for number in range(DIFFERENT)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write(folder / "pictures", pictures, count)
        lite = stack.enter_context(LiteServer(folder / "milvus"))
        parts = Parts(bundle, BATCHES[1:4] if quick else BATCHES)
        stack.callback(parts.close)
        limit = PictureLimit(parts, pictures, 64 if quick else 256)
        flags = ["--model", model, "--milvus-uri", lite.uri, *per_core()]
        ours = stack.enter_context(fleets({"worker": flags}))["worker"]
        limits, runs = [], []
        for number in range(rounds):
            before = limit.rate()
            runs.append(_indexed(ours, folder, f"bench_bulk_{number}", count, lite.uri))
            limits.append((before + limit.rate()) / 2)
        files = f"{count:,} files of {DIFFERENT} different pictures, read through the page cache"
        about = f"{limit.way}; Milvus Lite {check_lite_version()}; {files}"
        return _lines(limits, runs, about)


def write(folder: Path, pictures: Sequence[bytes], count: int) -> None:
    """So many files, ``FOLDER`` in each folder; those of one picture share its bytes on disk."""
    (folder / "first").mkdir(parents=True)
    for number, picture in enumerate(pictures[:count]):
        (folder / "first" / f"{number}.jpg").write_bytes(picture)
    for number in range(len(pictures), count):
        place = folder / f"{number // FOLDER:05}"
        place.mkdir(exist_ok=True)
        os.link(folder / "first" / f"{number % len(pictures)}.jpg", place / f"{number}.jpg")


def _indexed(fleet: Fleet, folder: Path, collection: str, count: int, uri: str) -> list[Sample]:
    """Index all of it with the command that people use, and look on."""
    queue = fleet.queue
    command = [sys.executable, "-m", "clipfleet.cli", "index", str(folder / "pictures"), "--queue", queue]
    command += ["--collection", collection, "--manifest", str(folder / f"{collection}.sqlite")]
    samples: list[Sample] = []
    with changed(CLIPFLEET_REDIS_URL=fleet.url, MILVUS_URI=uri), redis.Redis.from_url(fleet.url) as client:
        base = settled(client, queue)
        indexing = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while indexing.poll() is None:
                now = settled(client, queue) - base
                if not samples or now > samples[-1].settled:
                    samples.append(Sample(time.perf_counter(), now, resident(indexing.pid), resident(fleet.pids[-1])))
                time.sleep(LOOK_S)  # between two looks: heartbeats come once a second
        finally:
            indexing.kill()
            indexing.wait()
    if indexing.returncode:
        raise RuntimeError(f"clipfleet index ended with {indexing.returncode}")
    with contextlib.closing(Store(StoreConfig(uri, timeout_s=120.0))) as store:
        rows = store.count(collection)
    if rows != count:
        raise RuntimeError(f"{rows} rows of {count} are there")
    return samples


def settled(client: redis.Redis, queue: str) -> int:
    """Requests that the queue's workers have answered, as their heartbeats say."""
    keys = QueueKeys(queue, "clipfleet")
    names = client.zrange(keys.workers, 0, -1)
    return sum(int(client.hget(keys.worker(name.decode()), "settled") or 0) for name in names)


def resident(pid: int) -> int:
    """Bytes in memory of a process and all that it started; 0 when it is gone."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for one in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def sustained(samples: Sequence[Sample]) -> float:
    """Pictures a second between the first and the last heartbeat that saw progress before the end.

    The beginning (starting, connecting) and the end (comparing the store with the manifest) are left out.
    """
    seen = [one for one in samples if one.settled > 0]
    if len(seen) < 3:
        raise RuntimeError(f"too few heartbeats ({len(seen)}) in the run to tell a rate: index more pictures")
    first, last = seen[0], seen[-2]
    return (last.settled - first.settled) / (last.at - first.at)


def growth(samples: Sequence[Sample], who: str) -> float:
    """Memory over the last tenth of the run, as a ratio of that over the tenth in its middle."""
    most = samples[-1].settled
    if most < SHORTEST:
        raise RuntimeError(f"{most:,} pictures are too few to tell its growth: {SHORTEST:,} are the least")
    middle = [getattr(one, who) for one in samples if 0.45 * most <= one.settled <= 0.55 * most]
    end = [getattr(one, who) for one in samples if one.settled >= 0.9 * most and getattr(one, who)]
    if not middle or not end:
        raise RuntimeError("too few heartbeats to tell its growth: index more pictures")
    return statistics.median(end) / statistics.median(middle)


def _lines(limits: Sequence[float], runs: Sequence[Sequence[Sample]], about: str) -> list[Figure]:
    lines = [Figure("what the cores allow", tuple(limits), UNIT, note=about)]
    title = "clipfleet index, one worker"
    try:
        rates = tuple(sustained(samples) for samples in runs)
    except RuntimeError as error:
        lines.append(Figure(title, why=str(error)))
    else:
        told = "a process per core; between the first and the last heartbeat with progress"
        lines.append(Figure(title, rates, UNIT, arrival="closed loop, bulk lane", precision="fp32", note=told))
        lines.append(Figure("clipfleet index / allowed", ratios(rates, limits), "x", TARGET))
    for who in ("producer", "worker"):
        name = f"memory of the {who}, middle to end"
        mib = [getattr(one, who) / 2**20 for samples in runs for one in samples]
        try:
            grown = tuple(growth(samples, who) for samples in runs)
        except RuntimeError as error:
            lines.append(Figure(name, why=str(error)))
        else:
            lines.append(Figure(name, grown, "x", FLAT, note=f"at most {max(mib):,.0f} MiB"))
    return lines


if __name__ == "__main__":
    carry_out(run, __doc__, model=MODEL, rounds=1, count=20_000)
