"""Ours and what it is compared with in turn, in one run: ``python -m bench [queue|pipelines|live] [--rounds N]``."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import version
from pathlib import Path

from bench import live_latency, pipelines, queue_overhead


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("what", nargs="*", choices=["queue", "pipelines", "live", []], help="left out: all of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000, help="no-op requests of a round")
    parser.add_argument("--pictures", type=int, default=1_000, help="pictures of a round")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round of live queries")
    parser.add_argument("--model", default="demo", help="of the pictures; any but the demo is compared with open_clip")
    options = parser.parse_args()
    model = next((row for row in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in row), "?: ?")
    print(f"{platform.python_version()}, {model.split(': ')[1]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(", ".join(f"{name} {version(name)}" for name in ("clipfleet", "redis", "hiredis", "msgpack", "onnxruntime")))
    for name in options.what or ("queue", "pipelines", "live"):
        {"queue": queue_overhead.run, "pipelines": pipelines.run, "live": live_latency.run}[name](options)


if __name__ == "__main__":
    main()
