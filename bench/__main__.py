"""Ours and the limit in turn, in one run: ``python -m bench [--rounds N] [--count N]``."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from bench import bare, ours
from clipfleet.cli.local.redis import find_redis_server, free_port
from clipfleet.producer import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

IN_FLIGHT, DATA = 256, b"x" * 32


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


@contextmanager
def server(port: int) -> Iterator[redis.Redis]:
    binary = str(find_redis_server())
    with (
        tempfile.TemporaryDirectory() as folder,
        process(binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder),
        redis.Redis(port=port) as client,
    ):
        _until(lambda: _answers(client), "redis-server")
        yield client


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _until(condition: object, what: str, timeout: float = 30.0) -> None:
    give_up = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(what)
        time.sleep(0.01)


def single(call: object, count: int) -> float:
    """Median seconds of one call at a time."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def line(name: str, values: list[float], form: str) -> None:
    print(f"{name:<44} median {form.format(statistics.median(values))}   ", end="")
    print(f"min {form.format(min(values))}   max {form.format(max(values))}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    model = next((row for row in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in row), "?: ?")
    print(f"{platform.python_version()}, {model.split(': ')[1]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(", ".join(f"{name} {version(name)}" for name in ("clipfleet", "redis", "hiredis", "msgpack")))
    port = free_port()
    with server(port) as client:
        bare.prepare(client)
        url = f"redis://127.0.0.1:{port}"
        with (
            process(sys.executable, "-m", "bench.bare", str(port)),
            process(sys.executable, "-m", "bench.ours", url),
            Client(url, queue="clip", wait_for_worker=True) as fleet,
        ):
            fleet.run("echo", {"data": DATA})
            limits, rates, ratios, extra = [], [], [], []
            for number in range(options.rounds):
                turns = [
                    lambda: limits.append(options.count / bare.produce(client, options.count, IN_FLIGHT, DATA)),
                    lambda: rates.append(options.count / ours.produce(fleet, options.count, IN_FLIGHT, DATA)),
                ]
                for turn in turns if number % 2 else reversed(turns):
                    turn()
                ratios.append(rates[-1] / limits[-1])
                one = single(lambda: fleet.run("echo", {"data": DATA}), 200)
                least = single(lambda: bare.produce(client, 1, 1, DATA), 200)
                extra.append((one - least) * 1000)
            line("bare script, no-op requests/s", limits, "{:,.0f}")
            line("clipfleet, the same", rates, "{:,.0f}")
            line("clipfleet / bare", ratios, "{:.2f}")
            line("single call on an idle fleet: more by, ms", extra, "{:.2f}")


if __name__ == "__main__":
    main()
