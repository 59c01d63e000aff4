"""How long one waits before anything is done: an import, a command's help, a worker."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from bench.harness import in_turn, process, server, until
from bench.results import Part
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import Client
from clipfleet.schemas.keys import QueueKeys

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import redis

IMPORT = "import time; began = time.perf_counter(); import clipfleet.producer; print(time.perf_counter() - began)"
HELP = (sys.executable, "-m", "clipfleet.cli", "--help")


def run(options: argparse.Namespace) -> Part:
    """Wall-clock time of processes that start, files already in the page cache after the first round."""
    part = Part(
        "start",
        "Starting",
        "A producer's import, measured inside of a new interpreter; `clipfleet --help` and an empty interpreter as "
        "whole processes; a worker with the demo model, from its start until it is announced to the fleet, and until "
        "it has answered its first text.",
    )
    found: dict[str, list[float]] = {}

    def turn(name: str, work: Callable[[], float]) -> Callable[[int], None]:
        return lambda _: found.setdefault(name, []).append(work())

    port = free_port()
    with server(port) as client:
        ready: list[tuple[float, float]] = []
        turns = [
            turn("an empty interpreter", lambda: _whole(sys.executable, "-c", "pass")),
            turn("import clipfleet.producer", _import),
            turn("clipfleet --help", lambda: _whole(*HELP)),
            lambda number: ready.append(_worker(client, port, f"start{number}")),
        ]
        in_turn(options.rounds, turns)
    targets = {"import clipfleet.producer": "<= 0.3", "clipfleet --help": "<= 0.4"}
    for name, values in found.items():
        part.add(name, values, "s", target=targets.get(name, ""))
    part.add("worker with the demo model: announced", [one for one, _ in ready], "s", target="<= 3")
    part.add("worker with the demo model: first text answered", [one for _, one in ready], "s")
    return part


def _whole(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _import() -> float:
    return float(subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True).stdout)


def _worker(client: redis.Redis, port: int, queue: str) -> tuple[float, float]:
    url = f"redis://127.0.0.1:{port}"
    command = (sys.executable, "-m", "clipfleet.cli", "worker", "--redis-url", url, "--queue", queue, "--model", "demo")
    began = time.perf_counter()
    with process(*command), Client(url, queue=queue, wait_for_worker=True, timeout=60) as fleet:
        until(lambda: client.zcard(QueueKeys(queue).workers), "a worker with the demo model", 60)
        announced = time.perf_counter() - began
        fleet.embed_text("a red heart")
        return announced, time.perf_counter() - began
