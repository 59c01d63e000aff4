"""A fleet of their own for the CLIP benchmarks, and how fast it answers while its queue stays full."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.clip_work import Spent, cpu_of
from bench.harness import process, server, until
from bench.stats import pause_near, percentile
from clipfleet.cli.local.redis import free_port
from clipfleet.operators.cores import usable_cores
from clipfleet.producer import Client, requests

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clipfleet.producer.requests import NewRequest
    from clipfleet.schemas.result import Result

IN_FLIGHT = 256
READY_S = 300.0  # for a large model on a busy machine
WORKER = (sys.executable, "-m", "clipfleet.cli", "worker")


def per_core() -> list[str]:
    """Flags of a worker that gives each core a process of its own: the most pictures a second of a CPU."""
    return ["--processes", str(usable_cores()), "--threads", "1", "--decode-threads", "1", "--max-batch-size", "16"]


@dataclass
class Fleet:
    """A worker on a queue of its own, and a client of it.

    Attributes:
        client: speaks to it.
        url: of its Redis.
        queue: its name.
        pids: of Redis and the worker.
        sizes: of the batches that answered; each as often as there were results in it.
        latencies: seconds from a request's sending to its answer, of those that count.
    """

    client: Client
    url: str
    queue: str
    pids: tuple[int, ...]
    sizes: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    def sustained(self, asked: Callable[[int], Iterator[NewRequest]], count: int, warm: int = 128) -> Spent:
        """Answers a second while the queue stays full: closed loop, ``IN_FLIGHT`` at a time.

        About ``count`` of them count, between the ends of two batches; ``warm`` come before and after, so that no way
        is measured while it fills or drains. Processor time is that of the whole run, to its share of the answers.
        """
        total = warm + count + warm
        cpu, times, waited = cpu_of(self.pids), [], []
        stamped = map(_stamped, asked(total))
        for request, result in self.client.map_with_request(stamped, max_in_flight=IN_FLIGHT, ordered=False):
            self._heed(result)
            times.append(time.perf_counter())
            waited.append(times[-1] - request.tag)
        cpu = cpu_of(self.pids) - cpu
        # A third: the two cannot meet, and a batch of two thirds has its end in reach.
        reach = min(warm, count) // 3
        first, last = pause_near(times, warm, reach), pause_near(times, warm + count, reach)
        self.latencies += waited[first + 1 : last + 1]
        return Spent(last - first, times[last] - times[first], cpu * (last - first) / total)

    def _heed(self, result: Result) -> None:
        size = result.unwrap().notes.get("batch_size")
        if size is not None:
            self.sizes[size] += 1

    def ms(self, percent: float) -> float:
        """A percentile of the latencies; most of it is the queue's, which is kept full."""
        return percentile(self.latencies, percent) * 1000

    @property
    def histogram(self) -> dict[int, int]:
        """Batches by size."""
        return {size: max(1, round(items / size)) for size, items in sorted(self.sizes.items())}


def _stamped(request: NewRequest) -> NewRequest:
    request.tag = time.perf_counter()
    return request


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
        started = []
        with changed(CLIPFLEET_REDIS_URL=url, **environment):
            for number, (name, flags) in enumerate(workers.items()):
                queue = f"bench{number}"
                worker = stack.enter_context(process(*command, "--queue", queue, *flags))
                started.append(worker)
                client = stack.enter_context(Client(url, queue=queue, wait_for_worker=True, timeout=300.0))
                found[name] = Fleet(client, url, queue, (redis_pid, worker.pid))
        for fleet, worker in zip(found.values(), started, strict=True):
            _await_ready(fleet, worker)
        yield found


def _await_ready(fleet: Fleet, worker: subprocess.Popen[bytes]) -> None:
    """Until it answers; a worker that cannot start says why on standard error, and ends.

    Raises:
        RuntimeError: it has ended.
        RequestFailed: it does not answer.
    """
    job = fleet.client.submit(requests.embed_text("ready"), timeout=READY_S)
    until(lambda: job.done() or worker.poll() is not None, "a worker that answers", READY_S + 5)
    if worker.poll() is not None:
        raise RuntimeError(f"the worker ended with {worker.returncode}")
    job.result()


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
