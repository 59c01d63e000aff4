"""A real Celery worker, started as docs/celery.md says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Self

import psutil

from support.cli import clean_environment
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["CeleryWorker"]


class CeleryWorker:
    """``celery -A clipfleet.tasks worker`` with nothing but its environment; a context manager that kills it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *args: str) -> None:
        self.log_file = folder / f"celery-{os.urandom(3).hex()}.log"
        self._folder = folder
        self._environment = dict(environment)
        self._args = args
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def start(self) -> Self:
        command = [sys.executable, "-m", "celery", "-A", "clipfleet.tasks", "worker", "--loglevel", "INFO"]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--concurrency", "2", "--without-mingle", "--without-gossip", *self._args],
                cwd=self._folder,
                # What billiard leaves in the folder for temporary files when it is killed goes with the test's own.
                env=clean_environment(**self._environment, TMPDIR=str(self._folder)),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._is_ready, 60, "the Celery worker to be ready")
        return self

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log[-4000:]
        return " ready." in self.log

    def kill(self) -> None:
        """SIGKILL to the worker and its pool at once: nobody says goodbye."""
        assert self.process is not None
        family = [psutil.Process(self.process.pid)]
        family += family[0].children(recursive=True)
        for each in family:
            each.send_signal(signal.SIGKILL)
        self.process.wait(20)
        psutil.wait_procs(family, timeout=20)
        self.process = None

    def kill_pool(self) -> None:
        """SIGKILL to the processes that run tasks, as the kernel does when memory runs out."""
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children(recursive=True):
            child.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        print(self.log[-20_000:])  # pytest shows it with a test that fails
