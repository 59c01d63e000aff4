"""Bulk indexing of JPEG files from disk with one worker: against what the cores allow, and whether memory stays flat.

python -m bench.clip_bulk [--model ViT-B-32/random] [--rounds 5] [--count 20000] [--quick]
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

import numpy as np
import psutil
import redis

from bench.clip_fleet import Fleet, changed, fleets, per_core
from bench.clip_work import BATCHES, Parts, PictureLimit, allowed, carry_out
from bench.harness import cpu_s
from bench.pictures import jpeg
from bench.pipelines import DIFFERENT
from bench.results import Figure
from bench.stats import ratios
from clipfleet.models import resolve_model
from clipfleet.schemas.keys import QueueKeys
from clipfleet.store import Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer, check_lite_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.clip_work import Spent

MODEL, UNIT, TARGET = "ViT-B-32/random", "pictures/s", ">= 0.9"
TITLE = "clipfleet index"
# Ways to run a worker, as more flags. The second: whoever indexes while nobody searches lets batches take longer.
AS_IT_COMES, NOBODY_SEARCHES = {"": ()}, {"": (), "--bulk-batch-ms 500": ("--bulk-batch-ms", "500")}
FLAT = "<= 1.1"  # memory at the end of the run to that in its middle
SHORTEST = 4_000  # pictures; of fewer, the part that is looked at takes too short to tell growth
FEWEST = 1_000  # pictures; of fewer, those that are decoded but not answered are too large a part
FOLDER = 500  # files of a folder
LOOK_S = 0.1
ROWS, ROWS_AT_ONCE = 2_000, 16  # written to the store alone: as many at once as a process of the worker writes
# What is looked at of a run: not how it starts (connecting, loading) nor how it ends (comparing store and manifest).
FROM, TO = 0.1, 0.9
WHO = ("producer", "worker", "redis", "store")


@dataclass(frozen=True)
class Sample:
    """What was to be seen at a moment.

    Attributes:
        at: seconds.
        settled: requests answered until then.
        producer: its resident bytes.
        worker: the worker's, all its processes.
        cpu: seconds of a core that each of ``WHO`` has used.
    """

    at: float
    settled: int
    producer: int
    worker: int
    cpu: tuple[float, ...] = (0.0,) * len(WHO)


@dataclass(frozen=True)
class Round:
    """One run, and what there was beside it.

    Attributes:
        samples: of the run, in order.
        rate: pictures a second that the cores allow.
        rate_with_store: the same with what writing a row takes added.
        cpu_ms: of a core for each picture, decoding and model alone.
    """

    samples: Sequence[Sample]
    rate: float
    rate_with_store: float
    cpu_ms: float


def run(
    *,
    model: str = MODEL,
    rounds: int = 1,
    count: int = 20_000,
    later: int | None = None,
    quick: bool = False,
    ways: Mapping[str, Sequence[str]] = AS_IT_COMES,
) -> list[Figure]:
    """Measure; ``quick``: fewer pictures. The parts are measured alone between every two runs.

    Args:
        model: of the worker.
        rounds: of each way, in turn.
        count: pictures of a run.
        later: of a run of any round but the first, whose rates need fewer than memory does; None: as many.
        quick: one round of few pictures.
        ways: more flags of a worker, by what its lines say of it.
    """
    if quick:
        rounds, count = 1, min(count, 300)
    bundle = resolve_model(model)
    pictures = [jpeg(number) for number in range(DIFFERENT)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        counts = [count, *[count if later is None else later] * (rounds - 1)]
        for many in set(counts):
            write(folder / f"{many}", pictures, many)
        lite = stack.enter_context(LiteServer(folder / "milvus"))
        parts = Parts(bundle, BATCHES[1:4] if quick else BATCHES)
        stack.callback(parts.close)
        limit = PictureLimit(parts, pictures, 64)
        store = StoreLimit(lite, bundle.config.dimension, parts.cores)
        flags = ["--model", model, "--milvus-uri", lite.uri, *per_core()]
        ours = stack.enter_context(fleets({name: [*flags, *more] for name, more in ways.items()}))
        found: dict[str, list[Round]] = {name: [] for name in ways}
        before = limit.look()
        for number, many in enumerate(counts):
            for at, name in enumerate(ways if number % 2 else reversed(ways)):
                writing = store.seconds()
                samples = _indexed(ours[name], folder / f"{many}", f"bench_bulk_{number}_{at}", many, store)
                after = limit.look()
                found[name].append(_round(samples, (before, after), writing))
                before = after
        files = " and then ".join(f"{many:,}" for many in sorted(set(counts), reverse=True))
        files += f" files of {DIFFERENT} different pictures, read through the page cache"
        about = f"{limit.way}; Milvus Lite {check_lite_version()}; {files}"
        return [figure for name in ways for figure in _lines(found[name], name, about)]


class StoreLimit:
    """What writing rows takes alone, one after the other.

    Args:
        lite: the store.
        dimension: of its vectors.
        cores: that share the work.
    """

    def __init__(self, lite: LiteServer, dimension: int, cores: int) -> None:
        self.lite = lite
        self._cores = cores
        vectors = np.random.default_rng(0).standard_normal((ROWS, dimension)).astype(np.float32)
        self._rows = [Row(f"{number}", one, {"path": f"{number}"}) for number, one in enumerate(vectors)]

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the store's process."""
        return () if self.lite.pid is None else (self.lite.pid,)

    def seconds(self) -> float:
        """For each row, when all cores share it: processor time of whoever writes and of the store."""
        with contextlib.closing(Store(StoreConfig(self.lite.uri, timeout_s=120.0))) as store:
            store.ensure_collection("bench_rows", fingerprint="bench", dimension=len(self._rows[0].vector))
            store.upsert("bench_rows", self._rows[:ROWS_AT_ONCE])  # connecting is over
            before = time.process_time() + cpu_s(*self.pids)
            for first in range(0, ROWS, ROWS_AT_ONCE):
                store.upsert("bench_rows", self._rows[first : first + ROWS_AT_ONCE])
            taken = time.process_time() + cpu_s(*self.pids) - before
            store.drop("bench_rows")
        return taken / ROWS / self._cores


def _round(samples: Sequence[Sample], looks: Sequence[tuple[Spent, Spent]], writing: float) -> Round:
    """Of one run, of the parts alone before and after it, and of the seconds that a row takes the store."""
    rate = statistics.mean(allowed(*parts) for parts in looks)
    cpu_ms = statistics.mean(sum(part.cpu_ms for part in parts) for parts in looks)
    return Round(samples, rate, 1 / (1 / rate + writing), cpu_ms)


def write(folder: Path, pictures: Sequence[bytes], count: int) -> None:
    """So many files, ``FOLDER`` in each folder; those of one picture share its bytes on disk."""
    (folder / "first").mkdir(parents=True)
    for number, picture in enumerate(pictures[:count]):
        (folder / "first" / f"{number}.jpg").write_bytes(picture)
    for number in range(len(pictures), count):
        place = folder / f"{number // FOLDER:05}"
        place.mkdir(exist_ok=True)
        os.link(folder / "first" / f"{number % len(pictures)}.jpg", place / f"{number}.jpg")


def _indexed(fleet: Fleet, pictures: Path, collection: str, count: int, beside: StoreLimit) -> list[Sample]:
    """Index all of a folder with the command that people use, and look on."""
    queue, lite = fleet.queue, beside.lite
    command = [sys.executable, "-m", "clipfleet.cli", "index", str(pictures), "--queue", queue]
    command += ["--collection", collection, "--manifest", str(pictures.parent / f"{collection}.sqlite")]
    samples: list[Sample] = []
    with changed(CLIPFLEET_REDIS_URL=fleet.url, MILVUS_URI=lite.uri), redis.Redis.from_url(fleet.url) as client:
        base = settled(client, queue)
        indexing = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        # Found once: to look for the processes below another one costs as much as a dozen pictures.
        served, worker = (tree(pid) for pid in fleet.pids)
        producer, store = tree(indexing.pid), [one for pid in beside.pids for one in tree(pid)]
        try:
            while indexing.poll() is None:
                now = settled(client, queue) - base
                used = tuple(cpu_of(each) for each in (producer, worker, served, store))
                samples.append(Sample(time.perf_counter(), now, resident(producer), resident(worker), used))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    indexing.wait(LOOK_S)
        finally:
            indexing.kill()
            indexing.wait()
    if indexing.returncode:
        raise RuntimeError(f"clipfleet index ended with {indexing.returncode}")
    with contextlib.closing(Store(StoreConfig(lite.uri, timeout_s=120.0))) as store:
        rows = store.count(collection)
    if rows != count:
        raise RuntimeError(f"{rows} rows of {count} are there")
    return samples


def settled(client: redis.Redis, queue: str) -> int:
    """Requests that were answered until now: all that ever came into the queue, less those that are in it.

    An entry is deleted when it is settled. Heartbeats tell this too, but once a second.
    """
    found = 0
    for lane in QueueKeys(queue, "clipfleet").lanes:
        with contextlib.suppress(redis.ResponseError):  # no such stream yet
            stream = client.xinfo_stream(lane)
            found += int(stream["entries-added"]) - int(stream["length"])
    return found


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it has started until now."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def resident(processes: Sequence[psutil.Process]) -> int:
    """Bytes in memory; of those that are gone none."""
    total = 0
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


def cpu_of(processes: Sequence[psutil.Process]) -> float:
    """Seconds of a core so far; of those that are gone none."""
    total = 0.0
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total


def part_of(samples: Sequence[Sample], start: float, end: float) -> list[Sample]:
    """Those that were taken while so much of the run's requests were answered, as parts of all."""
    most = samples[-1].settled
    return [one for one in samples if start * most <= one.settled < end * most]


def sustained(samples: Sequence[Sample]) -> float:
    """Pictures a second: the slope of the line through all looks between a tenth and nine tenths of the run.

    Answers come in bursts, a batch at a time, so that two looks alone would be wrong by a batch at each end.
    """
    seen = part_of(samples, FROM, TO)
    if len(seen) < 10 or seen[-1].settled == seen[0].settled:
        raise RuntimeError(f"too few looks ({len(seen)}) at the run to tell a rate: index more pictures")
    return statistics.linear_regression([one.at for one in seen], [one.settled for one in seen]).slope


def spent_ms(samples: Sequence[Sample]) -> dict[str, float]:
    """Milliseconds of a core for each picture, by who used it, over the same part of the run as ``sustained``."""
    seen = part_of(samples, FROM, TO)
    first, last = seen[0], seen[-1]
    count = last.settled - first.settled
    used = zip(WHO, first.cpu, last.cpu, strict=True)
    return {who: 1000 * (after - before) / count for who, before, after in used}


def growth(samples: Sequence[Sample], who: str) -> float:
    """Memory when the last tenth is being indexed, as a ratio of that when half is.

    Not of what comes after it: to compare the store with the manifest the producer loads pymilvus.
    """
    most = samples[-1].settled
    if most < SHORTEST:
        raise RuntimeError(f"{most:,} pictures are too few to tell its growth: {SHORTEST:,} are the least")
    middle = [getattr(one, who) for one in part_of(samples, 0.45, 0.55)]
    end = [getattr(one, who) for one in part_of(samples, 0.9, 1.0)]
    if not middle or not end:
        raise RuntimeError("too few looks to tell its growth: index more pictures")
    return statistics.median(end) / statistics.median(middle)


def _lines(rounds: Sequence[Round], way: str, about: str) -> list[Figure]:
    limits = tuple(one.rate for one in rounds)
    said = f"{way}: " if way else ""
    lines = [Figure(f"{said}what the cores allow", limits, UNIT, note=about)]
    title = f"{said}clipfleet index, one worker"
    try:
        rates = tuple(sustained(one.samples) for one in rounds)
    except RuntimeError as error:
        lines.append(Figure(title, why=str(error)))
    else:
        spent = [spent_ms(one.samples) for one in rounds]
        parts = ", ".join(f"{who} {statistics.median(one[who] for one in spent):.2f}" for who in WHO)
        told = f"a process per core; between a tenth and nine tenths of the run; ms of a core for each: {parts}"
        lines.append(Figure(title, rates, UNIT, arrival="closed loop, bulk lane", precision="fp32", note=told))
        lines.append(Figure(f"{said}{TITLE} / allowed", ratios(rates, limits), "x", TARGET))
        stored = tuple(one.rate_with_store for one in rounds)
        told = f"rows written alone, {ROWS_AT_ONCE} at once, added to decoding and model"
        lines.append(Figure(f"{said}{TITLE} / allowed, with the store", ratios(rates, stored), "x", note=told))
        cpu = [sum(one.values()) - one["store"] for one in spent]
        told = "without the store's process"
        alone = [one.cpu_ms for one in rounds]
        name = f"{said}{TITLE} / allowed, by CPU"
        if min(one.samples[-1].settled for one in rounds) < FEWEST:
            lines.append(Figure(name, why=f"what is under way is too much of less than {FEWEST:,} pictures"))
        else:
            lines.append(Figure(name, ratios(alone, cpu), "x", note=told))
    return lines + [_memory(rounds, said, who) for who in ("producer", "worker")]


def _memory(rounds: Sequence[Round], said: str, who: str) -> Figure:
    """Of the longest runs: what grows for a while only is not to be seen in shorter ones."""
    name = f"{said}memory of the {who}, middle to end"
    longest = max(one.samples[-1].settled for one in rounds)
    rounds = [one for one in rounds if one.samples[-1].settled >= 0.9 * longest]
    try:
        grown = tuple(growth(one.samples, who) for one in rounds)
    except RuntimeError as error:
        return Figure(name, why=str(error))
    indexing, after = (
        max((getattr(one, who) for each in rounds for one in part_of(each.samples, *part)), default=0) / 2**20
        for part in ((0.0, 1.0), (1.0, 2.0))
    )
    told = f"at most {indexing:,.0f} MiB, and {after:,.0f} while the store is compared at the end"
    return Figure(name, grown, "x", FLAT, note=told)


if __name__ == "__main__":
    carry_out(run, __doc__, model=MODEL, rounds=1, count=20_000)
