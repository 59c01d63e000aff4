"""The task queues that the queue is compared with: their worker and their producer, each in its own environment."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.environments import environment
from bench.harness import cpu_s, pause, process, resume, start, stop

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent / "peers"
ROUND_S = 120.0  # for a whole round; the slowest needs a few seconds
IN_FLIGHT, TRIAL = 256, 768  # of a trial of settings
WARM_UP = 128  # requests before those that count: a process that stood still has timers to catch up with


class PeerFailed(Exception):
    """A peer that does not run here, or has stopped; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them.

    Attributes:
        name: its environment's, and what its files in ``peers/`` start with.
        shown: the packages whose versions are printed.
        worker: its worker's command, in its environment.
        database: of the Redis that all share.
        settings: more words of the command, and variables of both sides, by what they are called on the page; the
            first is the one that is likely to be the quickest, the others are tried where there is time for it.
    """

    name: str
    shown: tuple[str, ...]
    worker: tuple[str, ...]
    database: int
    settings: dict[str, tuple[tuple[str, ...], dict[str, str]]]


def _celery(name: str, shown: tuple[str, ...], database: int) -> Peer:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
    return Peer(
        name,
        shown,
        ("celery", "-A", f"bench.peers.{name}_peer", "worker", *quiet),
        database,
        {
            "pool solo": (("-P", "solo", "-c", "1"), {}),
            "pool threads": (("-P", "threads", "-c", "4"), {}),
            "pool prefork, one process": (("-P", "prefork", "-c", "1"), {}),
        },
    )


def _polling(*milliseconds: int) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    return {f"results polled each {each} ms": ((), {"BENCH_POLL_MS": str(each)}) for each in milliseconds}


PEERS = (
    _celery("celery", ("celery", "kombu"), 1),
    _celery("celery_batches", ("celery-batches", "celery"), 2),
    Peer(
        "arq",
        ("arq",),
        ("arq", "bench.peers.arq_peer.WorkerSettings", "--custom-log-dict", "bench.peers.arq_peer.LOGS"),
        3,
        _polling(50, 20, 100),
    ),
    Peer(
        "taskiq",
        ("taskiq", "taskiq-redis"),
        (
            *("taskiq", "worker", "bench.peers.taskiq_peer:broker", "--workers", "1", "--max-async-tasks", "256"),
            *("--max-prefetch", "256", "--no-parse", "--ack-type", "when_received", "--log-level", "ERROR"),
        ),
        4,
        _polling(100, 50, 200),
    ),
    Peer(
        "dramatiq",
        ("dramatiq",),
        ("dramatiq", "bench.peers.dramatiq_peer", "--processes", "1", "--skip-logging"),
        5,
        {
            "4 threads": (("--threads", "4"), {}),
            "1 thread, prefetch 256": (("--threads", "1"), {"dramatiq_queue_prefetch": "256"}),
            "8 threads, prefetch 256": (("--threads", "8"), {"dramatiq_queue_prefetch": "256"}),
        },
    ),
)


def pinned(peer: Peer) -> dict[str, str]:
    """The versions that it is measured at."""
    rows = (FOLDER / f"{peer.name}.txt").read_text(encoding="utf-8").splitlines()
    versions = dict(row.split("==") for row in rows if "==" in row and not row.startswith("#"))
    return {name: versions[name] for name in peer.shown}


class Running:
    """A peer with its worker and its producer, standing still between its turns.

    Attributes:
        rate: requests per second, as a first trial has it.
    """

    def __init__(self, worker: subprocess.Popen[bytes], producer: subprocess.Popen[bytes], *errors: Path) -> None:
        self._worker = worker
        self._producer = producer
        self._errors = errors
        self.rate = 0.0

    def round(self, count: int, in_flight: int, *, warm_up: bool = True) -> dict[str, Any]:
        """``{seconds, latencies, cpu_s}`` of one turn.

        Raises:
            PeerFailed: a process of it has ended, or it takes too long.
        """
        resume(self._worker)
        resume(self._producer)
        try:
            if warm_up:
                self._ask(WARM_UP, min(in_flight, WARM_UP))
            before = cpu_s(self._worker.pid, self._producer.pid)
            found = self._ask(count, in_flight)
            found["cpu_s"] = cpu_s(self._worker.pid, self._producer.pid) - before
            return found
        finally:
            pause(self._worker)
            pause(self._producer)

    def _ask(self, count: int, in_flight: int) -> dict[str, Any]:
        asks, says = self._producer.stdin, self._producer.stdout
        assert asks is not None
        assert says is not None
        try:
            asks.write(f"{count} {in_flight}\n".encode())
            asks.flush()
        except OSError as error:
            raise PeerFailed(self._why(f"its producer has ended: {error}")) from error
        with selectors.DefaultSelector() as ready:
            ready.register(says, selectors.EVENT_READ)
            if not ready.select(ROUND_S):
                raise PeerFailed(self._why(f"no {count} results within {ROUND_S:.0f} s"))
        said = says.readline()
        if not said:
            raise PeerFailed(self._why("its producer has ended"))
        found: dict[str, Any] = json.loads(said)
        return found

    def _why(self, text: str) -> str:
        if (code := self._worker.poll()) is not None:
            text += f"; its worker ended with {code}"
        said = "\n".join(path.read_text(errors="replace") for path in self._errors)
        rows = [row for row in said.splitlines() if row.strip()]
        return f"{text}; it last said: {rows[-1].strip()[:160]}" if rows else text


def quickest(peer: Peer, port: int, logs: Path) -> str:
    """Which of its settings to race with: each is tried for a moment.

    Raises:
        CannotInstall: its environment cannot be made.
        PeerFailed: it answers with none of them.
    """
    rates, failures = {}, []
    for setting in peer.settings:
        try:
            with started(peer, setting, port, logs) as running:
                rates[setting] = TRIAL / running.round(TRIAL, IN_FLIGHT)["seconds"]
        except PeerFailed as error:
            failures.append(f"{setting}: {error}")
    if not rates:
        raise PeerFailed("; ".join(failures))
    return max(rates, key=rates.__getitem__)


@contextmanager
def started(peer: Peer, setting: str, port: int, logs: Path) -> Iterator[Running]:
    """The peer, warmed up.

    Raises:
        CannotInstall: its environment cannot be made.
        PeerFailed: it does not answer.
    """
    tools = environment(peer.name, FOLDER / f"{peer.name}.txt")
    words, variables = peer.settings[setting]
    root = str(FOLDER.parents[1])
    url = f"redis://127.0.0.1:{port}/{peer.database}"
    env = {**os.environ, "PYTHONPATH": root, "BENCH_REDIS_URL": url, **variables}
    errors, errors_too = logs / f"{peer.name}.log", logs / f"{peer.name}-producer.log"
    command = (str(tools / peer.worker[0]), *peer.worker[1:], *words)
    with ExitStack() as stack:
        worker = stack.enter_context(process(*command, env=env, log=errors))
        producer = start(
            str(tools / "python"),
            "-m",
            f"bench.peers.{peer.name}_peer",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stack.enter_context(errors_too.open("wb")),
            env=env,
        )
        stack.callback(stop, producer)
        running = Running(worker, producer, errors, errors_too)
        for _ in range(2):  # the second is what it can do: connections are made, and code is warm
            found = running.round(WARM_UP, WARM_UP, warm_up=False)
        running.rate = WARM_UP / found["seconds"]
        yield running
