"""Child processes that die with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Child"]

# Run by a bare interpreter between us and the program: Popen's preexec_fn is unsafe once there are threads. The look
# at getppid closes the gap in which the parent died before prctl was called.
_TIE: Final = """
import ctypes, os, sys
parent, death_signal, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:
        sys.exit(1)
os.execvp(argv[0], argv)
"""


_LOG_BYTES: Final = 10_000_000
_TAIL_BYTES: Final = 16_384


class Child:
    """One program, its output in a log file, tied to the life of this process.

    It runs in a session of its own, so that Ctrl-C reaches only us and the order of stopping stays ours. Start it
    from the main thread: Linux sends the death signal when the *thread* that forked ends.

    Attributes:
        name: what messages call it.
        log: where its stdout and stderr go; appended to, and put aside at a start when it has grown above 10 MB.
    """

    def __init__(self, name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._env = None if env is None else dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self, *, death_signal: signal.Signals = signal.SIGTERM) -> None:
        """Start the program.

        Args:
            death_signal: what it gets, in Linux, at the moment when this process dies in whatever way.
        """
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        tie = [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), str(int(death_signal))]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*tie, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    def log_tail(self, lines: int = 15) -> str:
        """The last ``lines`` lines that it wrote since its start; empty when the log cannot be read."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    def exit_code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return 1 if self._process is None else self._process.poll()

    def alive(self) -> bool:
        """Whether it runs."""
        return self.exit_code() is None

    def stop(self, *, grace_s: float) -> None:
        """Ask it to end, wait at most ``grace_s`` seconds, then kill it and whatever it started."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                _kill_group(process.pid)
        process.wait()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
