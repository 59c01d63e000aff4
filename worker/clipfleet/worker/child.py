"""One worker process as its supervisor knows it: what it holds, what it does, whether it lives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipfleet.worker.control import Channel

if TYPE_CHECKING:
    from clipfleet.worker.config import WorkerConfig

__all__ = ["Child"]

# Stopped, traced, zombie, dead: whatever such a process holds, it does not work on.
NOT_RUNNING = frozenset("TtZX")


class Child:
    """A running worker process.

    Attributes:
        name: its consumer name, new at each start: a late message of a dead one must not speak for its successor.
        device: what it runs on.
        held: by lane, stream ids: what its leases are renewed for.
        call_began: monotonic time (s) at which its current model call began; None between calls.
        facts: what it said when it was ready; empty before.
        failure: why it could not start.
        stats: its latest figures.
    """

    def __init__(self, config: WorkerConfig, device: str) -> None:
        self.name = f"{socket.gethostname()[:24]}.{os.getpid()}.{os.urandom(6).hex()}"
        self.device = device
        self.held: dict[str, set[str]] = {lane: set() for lane in config.keys.lanes}
        self.call_began: float | None = None
        self.facts: dict[str, Any] = {}
        self.failure = ""
        self.stats: dict[str, Any] = {}
        self.started_at = time.monotonic()
        self.joined = False
        self._others_idle = False
        self._max_run_s = config.max_run_s
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "clipfleet.worker.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self.channel = Channel(ours)
        # By the socket and not by argument or environment: it may hold passwords, and `ps` shows the others.
        # Told, since it may have been killed already.
        self.tell("config", config.to_message(), self.name, device, config.log_level, os.getpid())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it lives."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """Whether it lives and is not stopped: a paused process keeps no lease."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return self.exit_code is None
        # The name, in parentheses, may itself hold parentheses and spaces.
        return stat.rpartition(")")[2].split()[0] not in NOT_RUNNING

    @property
    def hung(self) -> bool:
        """Whether its model call has taken longer than ``max_run_s``."""
        return self.call_began is not None and time.monotonic() - self.call_began > self._max_run_s

    def hear(self) -> None:
        """Take every message that is there."""
        try:
            for message in self.channel.arrived():
                self._take(message)
        except (EOFError, OSError):
            return  # it is dead or dying: its exit code says so in a moment

    def _take(self, message: list[Any]) -> None:
        kind, what, *more = message
        if kind == "held":
            for lane, ids in more[0].items():
                self.held[lane].difference_update(ids)
            for lane, ids in what.items():
                self.held[lane].update(ids)
        elif kind == "call":
            self.call_began = what
        elif kind == "ready":
            self.facts = what
        elif kind == "failed":
            self.failure = what
        elif kind == "stats":
            self.stats = what

    def tell(self, *message: Any) -> None:
        """Send a message; a dead child hears nothing, and that is found out by its exit code."""
        try:
            self.channel.send(*message)
        except OSError:
            return

    def hear_of_idle(self, others_idle: bool) -> None:  # noqa: FBT001  (a state)
        """Tell it whether another worker has nothing to do, when that has changed.

        Not while it is stopped: it reads nothing then, and whoever writes to it waits, in the end.
        """
        if others_idle != self._others_idle and self.running:
            self._others_idle = others_idle
            self.tell("idle", others_idle)

    def kill(self) -> None:
        """SIGKILL, and wait for the end (also of a stopped process)."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Free what is left of an ended process."""
        self.hear()
        self.channel.close()
