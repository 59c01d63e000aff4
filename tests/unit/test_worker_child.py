"""A worker process as its supervisor knows it."""

from __future__ import annotations

import os
import signal
import subprocess

from clipfleet.worker.child import Child
from clipfleet.worker.config import WorkerConfig
from support.waiting import wait_until


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


def test_given_a_stopped_process_then_it_is_told_of_others_once_it_runs_again_and_once(monkeypatch):
    child = Child(WorkerConfig(redis_url="redis://localhost:1"), "cpu")
    said = []
    monkeypatch.setattr(child, "tell", lambda *message: said.append(message))
    try:
        child.hear_of_idle(False)
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: not child.running, 10, "it stands still")
        child.hear_of_idle(True)
        assert said == []
        os.kill(child.pid, signal.SIGCONT)
        wait_until(lambda: child.running, 10, "it runs again")
        child.hear_of_idle(True)
        child.hear_of_idle(True)
        assert said == [("idle", True)]
    finally:
        child.kill()
        child.close()
