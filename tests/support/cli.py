"""Run the real command, and see what it leaves running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLEET_VARIABLES = ("CLIPFLEET_", "REDIS_URL", "MILVUS_")


@dataclass(frozen=True)
class Done:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def clean_environment(**variables: str) -> dict[str, str]:
    """This process's environment without what names a fleet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FLEET_VARIABLES)}
    return kept | variables


def start(*args: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """A command in the background, in a session of its own as a terminal would have it."""
    return subprocess.Popen(
        [sys.executable, "-m", "clipfleet.cli", *args],
        cwd=cwd,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def descendants(pid: int) -> set[int]:
    """Every process below ``pid``, by /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    while grown := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= grown
    return found


def running(pids: set[int]) -> set[int]:
    """Those of ``pids`` that still run; a zombie does not."""
    alive = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            alive.add(pid)
    return alive


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[str, str]:
    """Signal a command and wait for it; its streams."""
    process.send_signal(number)
    try:
        return process.communicate(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
