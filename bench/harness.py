"""What the benchmarks share: processes, a Redis of their own, and how figures are written."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

from clipfleet.cli.local.redis import find_redis_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


def _until(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> None:
    give_up = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(what)
        time.sleep(0.01)  # between two looks at the condition: another process, which cannot wake us


def single(call: Callable[[], Any], count: int) -> float:
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
