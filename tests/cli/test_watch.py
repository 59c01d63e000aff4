"""A command whose local fleet ends under it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clipfleet.cli.errors import CliError
from clipfleet.cli.local import watch
from clipfleet.cli.local.child import Child
from clipfleet.cli.local.endpoints import Endpoints, process_start
from clipfleet.schemas.errors import ErrorCode, Unavailable
from support.cli import clean_environment, descendants
from support.waiting import wait_until


@pytest.fixture
def interruptible():
    """SIGTERM interrupts, as every command has it."""

    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("interruptible")
def test_given_a_fleet_that_is_lost_when_a_command_waits_then_it_ends_with_the_reason():
    with pytest.raises(CliError, match="Redis is gone"), watch.watched(lambda: "Redis is gone"):
        threading.Event().wait(30)


def test_given_a_fleet_that_stays_when_a_command_ends_then_nothing_is_raised_and_its_own_errors_are():
    with watch.watched(lambda: ""):
        pass
    with pytest.raises(Unavailable), watch.watched(lambda: ""):
        raise Unavailable(ErrorCode.UNAVAILABLE, "no worker")
    assert not [thread for thread in threading.enumerate() if thread.name == "watch"]


def test_given_somebody_elses_fleet_when_it_has_gone_then_it_is_waited_for_a_while(monkeypatch, redis_server):
    mine = Endpoints(os.getpid(), process_start(os.getpid()) or 0, "up", "redis://127.0.0.1:1", None, "q", "p", True)
    folder = Path("/x/.clipfleet")
    monkeypatch.setattr(watch, "_GONE_S", 0.0)
    assert watch.gone((mine, folder))() == ""
    assert watch.gone((replace(mine, start=1, redis_url=redis_server.url), folder))() == ""
    dead = replace(mine, start=1)
    assert watch.gone((dead, folder))() == f"the fleet of {folder} ('clipfleet up', pid {mine.pid}) has stopped"
    monkeypatch.setattr(watch, "_GONE_S", 60.0)
    assert watch.gone((dead, folder))() == ""


def test_given_earlier_runs_in_a_log_when_its_end_is_shown_then_only_this_run_is_there(tmp_path):
    log = tmp_path / "x.log"
    for word in ("first", "second"):
        child = Child("x", [sys.executable, "-c", f"print({word!r})"], log=log)
        child.start()
        wait_until(lambda: not child.alive(), 30, "the program to end")  # noqa: B023  waited for in this turn
    assert log.read_text().split() == ["first", "second"]
    assert child.log_tail() == "second"


@pytest.mark.usefixtures("redis_binary")
def test_given_a_local_fleet_when_its_redis_dies_then_the_command_ends_soon_and_says_so(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "clipfleet.cli", "embed", "--local", "-"],
        cwd=tmp_path,
        env=clean_environment(CLIPFLEET_MODEL="none"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def redis() -> int:
        found = [pid for pid in descendants(process.pid) if "redis-server" in _command_line(pid)]
        return found[0] if found else 0

    wait_until((tmp_path / ".clipfleet" / "endpoints.json").exists, 90, "the fleet to be up")
    os.kill(redis(), signal.SIGKILL)
    began = time.monotonic()
    assert process.wait(60) == 1
    assert time.monotonic() - began < 30
    assert "Redis ended by itself" in process.stderr.read()
    process.stdin.close()
    process.stderr.close()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
