"""A worker process as its supervisor knows it."""

from __future__ import annotations

import subprocess

from clipfleet.worker.child import Child
from clipfleet.worker.config import WorkerConfig


def test_given_a_process_that_is_killed_as_it_starts_then_its_exit_code_says_so_and_the_supervisor_lives(monkeypatch):
    class Killed(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.kill()
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Killed)
    child = Child(WorkerConfig(redis_url="redis://localhost:1"), "cpu")
    child.tell("go")
    assert child.exit_code == -9
    child.close()
