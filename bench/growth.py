"""Whether a request costs more when many are queued: one worker, a backlog that is kept at its size meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psutil

from bench import ours
from bench.harness import cpu_s, in_turn, server, until
from bench.results import Curve, Part, Plot
from bench.stats import Spread
from clipfleet.cli.local.redis import free_port
from clipfleet.schemas import scripts
from clipfleet.schemas.codec import encode_map
from clipfleet.schemas.keys import QueueKeys

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import redis

DATA = b"x" * 32
CALL = 256  # requests of one admit call, as the client's
ROOM = 4_000_000
REPLY_TTL_MS = 1_000
WARM_UP = 2_000
LIVES_MS = 86_400_000  # no request of a backlog ends before it is settled


class Backlog:
    """A queue of its own with so many requests in it, by the admission script that all producers use."""

    def __init__(self, client: redis.Redis, size: int) -> None:
        self.size = size
        self.name = f"backlog{size}"
        self._client = client
        self._keys = QueueKeys(self.name)
        self._admit = client.register_script(scripts.load("admit").text)
        self._sent = 0
        self._calls = 0

    @property
    def length(self) -> int:
        return int(sum(self._client.xlen(lane) for lane in self._keys.lanes))

    @property
    def settled(self) -> int:
        """How many requests have left it so far."""
        return self._sent - self.length

    def limits_known(self) -> bool:
        """Whether a worker has said how much this queue holds."""
        return bool(self._client.hexists(self._keys.fleet, "capacity"))

    def fill(self) -> float:
        """Send as many as are missing; seconds of processor that it took the server, per request."""
        missing = self.size - self.length
        before, redis_pid = self._sent, int(self._client.info("server")["process_id"])
        used = cpu_s(redis_pid)
        while missing > 0:
            self._send(min(CALL, missing))
            missing -= CALL
        return (cpu_s(redis_pid) - used) / max(1, self._sent - before)

    def keep(self, settled: int) -> None:
        """Replace what leaves, until ``settled`` requests have left it in all.

        Raises:
            TimeoutError: nothing leaves it any more.
        """
        seen, since = -1, time.monotonic()
        while True:
            length = self.length
            left = self._sent - length
            if left >= settled:
                return
            if left != seen:
                seen, since = left, time.monotonic()
            elif time.monotonic() - since > 30:
                raise TimeoutError(f"nothing leaves {self.name}")
            if (missing := self.size - length) > 0:
                self._send(min(CALL, missing))
            else:
                time.sleep(0.001)  # the worker is another process: it takes a batch meanwhile

    def _send(self, count: int) -> None:
        self._calls += 1
        arguments: list[Any] = ["interactive"]
        for number in range(self._sent, self._sent + count):
            name = f"{self.name}-{number}"
            request = {
                "v": 1,
                "id": name,
                "pipeline": "echo",
                "inputs": {"data": DATA},
                "reply_to": self._keys.result(name),
                "reply_ttl": REPLY_TTL_MS,
            }
            arguments += [name, LIVES_MS, encode_map(request)]
        keys = [*self._keys.lanes, self._keys.fleet, self._keys.bytes, self._keys.call("growth", self._calls)]
        accepted = self._admit(keys=keys, args=arguments)[0]
        if accepted != count:
            raise RuntimeError(f"only {accepted} of {count} requests were taken")
        self._sent += count


def run(options: argparse.Namespace) -> Part:
    """Processor time of the worker and of Redis for each request, with backlogs of several sizes."""
    part = Part(
        "growth",
        "What a backlog costs",
        "So many no-op requests wait; a worker settles them while as many are added as leave. The processor time of "
        "the worker and of Redis (which also takes in the new ones) is counted for each request settled; each result "
        "goes to a key of its own that expires after a second.",
    )
    costs: dict[tuple[str, int], list[float]] = {}
    memory: dict[int, float] = {}
    port = free_port()
    with server(port) as client:
        backlogs = [Backlog(client, size) for size in options.backlogs]
        empty = int(client.info("memory")["used_memory"])
        for backlog in backlogs:
            with _worker(port, backlog.name):
                until(backlog.limits_known, f"a worker of {backlog.name}")
            backlog.fill()
            memory[backlog.size] = (int(client.info("memory")["used_memory"]) - empty) / backlog.size
            empty = int(client.info("memory")["used_memory"])
        in_turn(options.rounds, [_turn(client, port, backlog, options.count, costs) for backlog in backlogs])
    smallest = options.backlogs[0]
    kinds = ("worker", "redis-server", "both")
    for kind in kinds:
        for size in options.backlogs:
            name = f"{kind}: processor time, {size:,} queued"
            part.add(name, costs[kind, size], "us/request", arrival="the backlog is kept at its size")
    for size in options.backlogs:
        rates = [1e6 / each for each in costs["wall", size]]
        part.add(f"requests settled, {size:,} queued", rates, "requests/s", arrival="the backlog is kept at its size")
    for size in options.backlogs[1:]:
        part.ratio(
            f"both: {size:,} queued / {smallest:,}", costs["both", size], costs["both", smallest], target="<= 1.1"
        )
    largest = max(memory)  # of few requests most is the queue's own
    part.add(f"memory of Redis for a request, {largest:,} queued", [memory[largest]], "bytes")
    part.plots.append(_plot(options.backlogs, costs, kinds))
    return part


def _worker(port: int, queue: str) -> Any:
    return ours.worker(
        f"redis://127.0.0.1:{port}", queue=queue, capacity=ROOM, bulk_capacity=ROOM, max_queue_bytes=ROOM * 1_000
    )


def _turn(
    client: redis.Redis, port: int, backlog: Backlog, count: int, costs: dict[tuple[str, int], list[float]]
) -> Callable[[int], None]:
    redis_pid = int(client.info("server")["process_id"])

    def once(_: int) -> None:
        with _worker(port, backlog.name) as worker:
            backlog.keep(backlog.settled + WARM_UP)
            began, settled = time.perf_counter(), backlog.settled
            worker_s, redis_s = cpu_s(worker.pid), psutil.Process(redis_pid).cpu_times()
            backlog.keep(settled + count)
            after = psutil.Process(redis_pid).cpu_times()
            done, seconds = backlog.settled - settled, time.perf_counter() - began
            spent = {
                "worker": cpu_s(worker.pid) - worker_s,
                "redis-server": after.user + after.system - redis_s.user - redis_s.system,
                "wall": seconds,
            }
            spent["both"] = spent["worker"] + spent["redis-server"]
            for kind, each in spent.items():
                costs.setdefault((kind, backlog.size), []).append(each / done * 1e6)
        backlog.fill()  # what was handed back, and what was settled on the way out

    return once


def _plot(sizes: tuple[int, ...], costs: dict[tuple[str, int], list[float]], kinds: tuple[str, ...]) -> Plot:
    curves = []
    for kind in kinds:
        spreads = [Spread.of(costs[kind, size]) for size in sizes]
        curves.append(
            Curve(
                kind,
                [float(size) for size in sizes],
                [each.median for each in spreads],
                [each.low for each in spreads],
                [each.high for each in spreads],
            )
        )
    return Plot(
        "backlog",
        "Cost of a request with a backlog",
        "requests queued",
        "us of processor / request",
        curves,
        log_x=True,
    )
