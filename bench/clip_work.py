"""What the CLIP benchmarks share: what each part of the work takes alone, a fleet of their own, lines of a table."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import psutil

from bench.harness import line, process, server
from clipfleet.cli.local.redis import free_port
from clipfleet.models import Tokenize, open_runtime
from clipfleet.operators.cores import usable_cores
from clipfleet.operators.image import prepare_image
from clipfleet.producer import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clipfleet.models.bundle import Bundle
    from clipfleet.producer.requests import NewRequest
    from clipfleet.schemas.result import Result

BATCHES = (1, 4, 8, 16, 32, 64)
IN_FLIGHT = 256
WORKER = (sys.executable, "-m", "clipfleet.cli", "worker")


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
        name: what was measured.
        values: one for each round; empty where it could not be run.
        unit: of the values; empty for a ratio.
        target: what a ratio is to be at least; None: there is none.
        facts: arrival pattern, batch histogram, p50 and p99, precision, agreement: whatever belongs to it.
        why: why it could not be run.
    """

    name: str
    values: tuple[float, ...] = ()
    unit: str = ""
    target: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def show(self) -> Self:
        """Print it."""
        if self.why:
            print(f"{self.name:<44} not run: {self.why}")
        else:
            line(f"{self.name}, {self.unit}".rstrip(", "), list(self.values), "{:,.2f}")
            if self.target is not None:
                word = "met" if statistics.median(self.values) >= self.target else "missed"
                print(f"{'':<44} target {self.target:g}: {word}")
        for name, fact in self.facts.items():
            print(f"    {name}: {fact}")
        return self


@dataclass(frozen=True)
class Spent:
    """What a piece of work took.

    Attributes:
        items: how many.
        wall_s: seconds by the clock.
        cpu_s: seconds of all cores, by this process and those that were named.
    """

    items: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of one core for an item."""
        return 1000 * self.cpu_s / self.items


def spent(work: Callable[[], Any], items: int, others: Sequence[int] = ()) -> Spent:
    """Do it, and tell what it took here and in the trees of processes ``others``."""
    cpu, began = cpu_of(others), time.perf_counter()
    work()
    return Spent(items, time.perf_counter() - began, cpu_of(others) - cpu)


def cpu_of(pids: Sequence[int]) -> float:
    """CPU seconds so far of this process and of those, with all that they started."""
    total = time.process_time()
    for pid in pids:
        root = psutil.Process(pid)
        for one in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended since it was listed
                times = one.cpu_times()
                total += times.user + times.system
    return total


@dataclass(frozen=True)
class Best:
    """The quickest way to call a model on this machine.

    Attributes:
        batch: items of a call.
        threads: of a call.
        sessions: calls at once.
    """

    batch: int
    threads: int
    sessions: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.sessions} at once with {self.threads} threads each"


class Parts:
    """Each part of the work alone, on all cores of this process: what they allow is what all parts together take.

    Args:
        bundle: the model.
        batches: sizes to try.
    """

    def __init__(self, bundle: Bundle, batches: Sequence[int] = BATCHES) -> None:
        self.bundle = bundle
        self.cores = usable_cores()
        self._batches = batches
        # All cores at one call, or a call for each core.
        splits = {(self.cores, 1), (1, self.cores)}
        self._runtimes = {
            split: [open_runtime(bundle, providers=["cpu"], threads=split[0]) for _ in range(split[1])]
            for split in sorted(splits)
        }
        self._tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
        self._pool = ThreadPoolExecutor(self.cores)

    def decode(self, pictures: Sequence[bytes]) -> Spent:
        """Decoding and resizing, on as many threads as there are cores."""
        return spent(lambda: self.pixels(pictures), len(pictures))

    def tokenize(self, texts: Sequence[str]) -> Spent:
        """Cleaning and tokenising, on one thread: it holds the GIL, so more are no faster."""
        return spent(lambda: self.ids(texts), len(texts))

    def pixels(self, pictures: Sequence[bytes]) -> list[Any]:
        """What the model takes of pictures."""
        config = self.bundle.config.image
        return list(self._pool.map(lambda one: prepare_image(one, config), pictures))

    def ids(self, texts: Sequence[str]) -> list[Any]:
        """What the model takes of texts."""
        return [self._tokenize(text)[0] for text in texts]

    def best(self, items: Sequence[Any]) -> Best:
        """The quickest of all batch sizes and splits of the cores for these prepared items; the best of two looks."""
        found: dict[Best, float] = {}
        for split in self._runtimes:
            for batch in self._batches:
                way = Best(batch, *split)
                some = items[: max(2 * batch * split[1], 32)]
                self.model(some[: batch * split[1]], way)  # the arena grows
                found[way] = min(self.model(some, way).wall_s / len(some) for _ in range(2))
        return min(found, key=lambda way: found[way])

    def model(self, items: Sequence[Any], way: Best) -> Spent:
        """The tower alone, on items that are prepared."""
        batches = [items[first : first + way.batch] for first in range(0, len(items), way.batch)]
        runtimes = self._runtimes[way.threads, way.sessions]

        def work(number: int) -> None:
            for batch in batches[number :: way.sessions]:
                if batch[0].ndim == 1:
                    runtimes[number].encode_texts(batch)
                else:
                    runtimes[number].encode_images(np.stack(batch))

        return spent(lambda: list(self._pool.map(work, range(way.sessions))), len(items))

    def vectors(self, pictures: Sequence[bytes]) -> Any:
        """The vectors of a few pictures, float32 [n, d]."""
        return self._runtimes[1, self.cores][0].encode_images(np.stack(self.pixels(pictures)))

    def model_vectors(self, ids: Sequence[Any]) -> Any:
        """The vectors of tokenised texts, float32 [n, d]."""
        runtime = self._runtimes[1, self.cores][0]
        return np.concatenate([runtime.encode_texts(ids[first : first + 64]) for first in range(0, len(ids), 64)])

    def close(self) -> None:
        """Free the models."""
        self._pool.shutdown()
        for runtimes in self._runtimes.values():
            for runtime in runtimes:
                runtime.close()


@dataclass
class Fleet:
    """A worker on a queue of its own, and a client of it.

    Attributes:
        client: speaks to it.
        url: of its Redis.
        queue: its name.
        pids: of Redis and the worker.
        sizes: of the batches that answered; each as often as there were results in it.
    """

    client: Client
    url: str
    queue: str
    pids: tuple[int, ...]
    sizes: Counter[int] = field(default_factory=Counter)

    def sustained(self, requests: Callable[[int], Iterator[NewRequest]], count: int, warm: int = 64) -> Spent:
        """Answers a second while the queue stays full: closed loop, ``IN_FLIGHT`` at a time.

        The clock starts at result number ``warm``, and as many requests follow the last that counts: no way is
        measured while it fills or drains.
        """
        began = cpu = 0.0
        taken = Spent(0, 0.0, 0.0)
        results = self.client.map(requests(warm + count + warm), max_in_flight=IN_FLIGHT, ordered=False)
        for number, result in enumerate(results, 1):
            self._heed(result)
            if number == warm:
                began, cpu = time.perf_counter(), cpu_of(self.pids)
            if number == warm + count:
                taken = Spent(count, time.perf_counter() - began, cpu_of(self.pids) - cpu)
        return taken

    def _heed(self, result: Result) -> None:
        size = result.unwrap().notes.get("batch_size")
        if size is not None:
            self.sizes[size] += 1

    @property
    def histogram(self) -> dict[int, int]:
        """Batches by size."""
        return {size: max(1, round(items / size)) for size, items in sorted(self.sizes.items())}


@contextlib.contextmanager
def fleets(
    workers: Mapping[str, Sequence[str]], *, command: Sequence[str] = WORKER, **environment: str
) -> Iterator[dict[str, Fleet]]:
    """A worker with these flags for each name, each on a queue of its own of one Redis, ready to answer.

    Args:
        workers: flags by name.
        command: what starts a worker.
        environment: more of it.
    """
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(server(port))
        redis_pid = redis.info("server")["process_id"]
        found: dict[str, Fleet] = {}
        with changed(CLIPFLEET_REDIS_URL=url, **environment):
            for number, (name, flags) in enumerate(workers.items()):
                queue = f"bench{number}"
                worker = stack.enter_context(process(*command, "--queue", queue, *flags))
                client = stack.enter_context(Client(url, queue=queue, wait_for_worker=True, timeout=300.0))
                found[name] = Fleet(client, url, queue, (redis_pid, worker.pid))
        for fleet in found.values():
            fleet.client.embed_text("ready", timeout=300)
        yield found


@contextlib.contextmanager
def changed(**environment: str) -> Iterator[None]:
    """These variables, for what is started inside."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def cpu_line(found: Sequence[Spent]) -> str:
    """What an item costs, all processes together."""
    return f"{statistics.median(one.cpu_ms for one in found):.2f} ms of a core for each"


def rounds_of(ways: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, list[Spent]]:
    """Each way in turn, as often as there are rounds; every other round backwards, so that none is always first."""
    found: dict[str, list[Spent]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 else reversed(ways):
            found[name].append(ways[name]())
    return found


def ratios(over: Sequence[float], under: Sequence[float]) -> tuple[float, ...]:
    """Round by round."""
    return tuple(one / other for one, other in zip(over, under, strict=True))
