"""The same work through clipfleet.

python -m bench.ours URL         a worker that serves ``echo`` alone, until it is killed; other settings of a
                                 ``WorkerConfig`` follow as NAME=VALUE
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.harness import process
from clipfleet.producer import requests
from clipfleet.worker import WorkerConfig, run
from clipfleet.worker.hooks import Hooks

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from clipfleet.producer import Client

BATCHES = "CLIPFLEET_BENCH_BATCHES"  # the file that a worker writes the sizes of its batches to
SIZE = struct.Struct("<BI")
SETTLED, CALLED = 0, 1


class Sizes(Hooks):
    """Writes down the size of each batch: of those that are settled together, and of those that a model is given."""

    def __init__(self) -> None:
        self._file = os.open(os.environ[BATCHES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def before_settle(self, count: int) -> None:
        os.write(self._file, SIZE.pack(SETTLED, count))

    def before_call(self, stage: str, batch: Sequence[Any]) -> None:  # noqa: ARG002  (the hook's signature)
        os.write(self._file, SIZE.pack(CALLED, len(batch)))


class Batches:
    """Reads what `Sizes` writes, as far as it is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self, kind: int) -> dict[int, int]:
        """How many batches were of which size since the last look."""
        if not self._path.exists():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._read)
            raw = file.read()
        whole = len(raw) - len(raw) % SIZE.size
        self._read += whole
        return dict(sorted(Counter(count for each, count in SIZE.iter_unpack(raw[:whole]) if each == kind).items()))


@contextmanager
def worker(url: str, batches: Path | None = None, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of its own process; ``settings`` as in ``WorkerConfig``, numbers and words."""
    words = [f"{name}={value}" for name, value in settings.items()]
    if batches is not None:
        words.append("hooks=bench.ours:Sizes")
    env = {BATCHES: str(batches)} if batches is not None else {}
    with process(sys.executable, "-m", "bench.ours", url, *words, env=env) as running:
        yield running


def produce(client: Client, count: int, in_flight: int, data: bytes) -> tuple[float, list[float]]:
    """Send ``count`` requests, ``in_flight`` at a time; seconds until all results were received, and of each.

    Raises:
        RuntimeError: not all of them were answered.
    """
    clock = time.perf_counter
    latencies: list[float] = []
    began = clock()
    asked = (requests.echo(data, tag=clock()) for _ in range(count))
    for request, result in client.map_with_request(asked, max_in_flight=in_flight, ordered=False):
        if not result.ok:
            raise RuntimeError(f"a request failed: {result.error}")
        latencies.append(clock() - request.tag)
    seconds = clock() - began
    if len(latencies) != count:
        raise RuntimeError(f"{len(latencies)} results of {count} requests")
    return seconds, latencies


def _config(url: str, words: list[str]) -> WorkerConfig:
    settings: dict[str, Any] = {"model": "none", "max_delay_ms": 0, "log_level": "WARNING"}
    for word in words:
        name, _, value = word.partition("=")
        settings[name] = int(value) if value.isdigit() else value
    return WorkerConfig(redis_url=url, **settings)


if __name__ == "__main__":
    sys.exit(run(_config(sys.argv[1], sys.argv[2:])))
