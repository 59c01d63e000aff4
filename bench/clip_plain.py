"""The plain way to embed pictures: open_clip on torch eager, PIL, one picture at a time.

``python -m bench.clip_plain MODEL`` is the side that needs torch, told by JSON lines what to do. It may run in another
environment than the benchmark: ``CLIPFLEET_BENCH_TORCH`` names the Python of one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from types import TracebackType

LOOK = 6  # pictures for each number of threads that is tried


def torch_python() -> str:
    """A Python that has torch and open_clip; empty when there is none."""
    if all(importlib.util.find_spec(name) for name in ("torch", "open_clip")):
        return sys.executable
    return os.environ.get("CLIPFLEET_BENCH_TORCH", "")


class Plain:
    """That process. Usable as a context manager.

    Attributes:
        versions: of what it runs.
        threads: of torch, the quickest number of them.
    """

    def __init__(self, model: str, python: str) -> None:
        # OpenMP as it is by default: what we set for several processes on shared cores is not this one's to bear.
        alone = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        command = [python, "-m", "bench.clip_plain", model]
        self._process = subprocess.Popen(command, env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = ""
        self.threads = 0

    def __enter__(self) -> Self:
        ready = self._heard()
        self.versions, self.threads = ready["versions"], ready["threads"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def embed(self, count: int) -> tuple[float, float]:
        """Seconds by the clock, and of all cores, for so many pictures."""
        told = self._asked({"count": count})
        return told["wall_s"], told["cpu_s"]

    def vectors(self, count: int) -> Any:
        """The vectors of the first pictures."""
        return np.asarray(self._asked({"vectors": count})["vectors"], np.float32)

    def _asked(self, what: dict[str, int]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"the plain pipeline ended with {self._process.wait()}")
        return dict(json.loads(said))


def serve(model: str) -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    import open_clip
    import torch

    from bench.pictures import jpeg
    from bench.pipelines import DIFFERENT
    from bench.pipelines import open_clip as plain
    from clipfleet.operators.cores import usable_cores

    pictures = [jpeg(number) for number in range(DIFFERENT)]
    embed = plain(model)
    assert embed is not None

    def timed(count: int) -> tuple[float, float]:
        cpu, began = time.process_time(), time.perf_counter()
        for number in range(count):
            embed(pictures[number % DIFFERENT])
        return time.perf_counter() - began, time.process_time() - cpu

    found = {}
    for threads in range(1, usable_cores() + 1):
        torch.set_num_threads(threads)
        timed(1)
        found[threads] = min(timed(LOOK)[0] for _ in range(2))
    best = min(found, key=lambda threads: found[threads])
    torch.set_num_threads(best)

    def say(what: dict[str, Any]) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    say({"versions": f"torch {torch.__version__}, open_clip {open_clip.__version__}", "threads": best})
    for asked in map(json.loads, sys.stdin):
        if "count" in asked:
            wall_s, cpu_s = timed(asked["count"])
            say({"wall_s": wall_s, "cpu_s": cpu_s})
        else:
            say({"vectors": [embed(one).tolist() for one in pictures[: asked["vectors"]]]})


if __name__ == "__main__":
    serve(sys.argv[1])
