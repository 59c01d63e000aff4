"""What the benchmarks share: processes, a Redis of their own, turns, and how single figures are written."""

from __future__ import annotations

import ctypes
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import psutil
import redis

from clipfleet.cli.local.redis import find_redis_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

STOP_S = 15.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: after a fork nothing may be


@contextmanager
def process(
    *command: str, env: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as the block lasts, at the head of a group of its own; its errors go to ``log``."""
    with log.open("wb") if log else nullcontext() as said:
        running = start(*command, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **(env or {})})
        try:
            yield running
        finally:
            stop(running)


def start(*command: str, **options: Any) -> subprocess.Popen[bytes]:
    """As ``Popen``, at the head of a group of its own; whatever ends this process ends that one, too.

    A group of its own is not told of Ctrl-C, and one that stands still (see `pause`) would hear of nothing: left
    alone, it would wait for ever.
    """
    return subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent, **options)  # noqa: PLW1509


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(running: subprocess.Popen[Any], patience_s: float = STOP_S) -> None:
    """End it, and all of its group that outlives it."""
    resume(running)
    running.terminate()
    with suppress(subprocess.TimeoutExpired):
        running.wait(patience_s)
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def pause(running: subprocess.Popen[Any]) -> None:
    """Let it and its group stand still: what polls must not take the time of those whose turn it is."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGSTOP)


def resume(running: subprocess.Popen[Any]) -> None:
    """Let it go on."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGCONT)


def cpu_s(*pids: int) -> float:
    """Processor seconds of the processes and all below them, user and system."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            head = psutil.Process(pid)
            for each in (head, *head.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    total += times.user + times.system
    return total


@contextmanager
def server(port: int) -> Iterator[redis.Redis]:
    binary = str(find_redis_server())
    with (
        tempfile.TemporaryDirectory() as folder,
        process(binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder),
        redis.Redis(port=port) as client,
    ):
        until(lambda: _answers(client), "redis-server")
        yield client


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def until(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> None:
    """Wait for something that another process does.

    Raises:
        TimeoutError: it has not come true in ``timeout`` seconds.
    """
    give_up = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(what)
        time.sleep(0.01)  # between two looks at the condition: another process, which cannot wake us


def in_turn(rounds: int, turns: Sequence[Callable[[int], Any]]) -> None:
    """All of them once in each round, every other round in the opposite order: who comes first gains nothing by it."""
    for number in range(rounds):
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn(number)


def single(call: Callable[[], Any], count: int) -> float:
    """Median seconds of one call at a time."""
    return statistics.median(singles(call, count))


def singles(call: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each call, one at a time."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times
