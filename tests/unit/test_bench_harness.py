"""Processes of the benchmarks: none is left behind, and one that fails is a line that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from support.waiting import wait_until

if not (Path(__file__).parents[2] / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)

from bench import environments, queue_peers
from bench.harness import cpu_s, in_turn, pause, process, start, stop
from bench.queue_overhead import Race
from bench.queue_peers import Peer, PeerFailed, Running, quickest
from bench.results import Part

REPOSITORY = Path(__file__).parents[2]
SLEEP = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def status(pid):
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"


def test_given_a_process_that_stands_still_when_it_is_stopped_then_it_ends():
    with process(*SLEEP) as running:
        pause(running)
        wait_until(lambda: status(running.pid) == psutil.STATUS_STOPPED, description="it stands still")
    assert running.returncode == -signal.SIGTERM


def test_given_a_process_that_does_not_listen_when_it_is_stopped_then_it_ends_all_the_same():
    running = start(sys.executable, "-c", STUBBORN, stdout=subprocess.PIPE)
    running.stdout.readline()
    stop(running, 0.2)
    running.stdout.close()
    assert running.returncode == -signal.SIGKILL


def test_given_a_benchmark_that_is_killed_then_what_it_had_started_is_gone_though_it_stood_still():
    code = (
        "import sys; from bench.harness import pause, start; "
        "child = start(sys.executable, '-c', 'import time; time.sleep(600)'); "
        "pause(child); print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        pid = int(parent.stdout.readline())
        wait_until(lambda: status(pid) == psutil.STATUS_STOPPED, description="it stands still")
        parent.kill()
    wait_until(lambda: status(pid) in ("gone", psutil.STATUS_ZOMBIE), description="it is gone")


def test_given_turns_then_every_other_round_goes_the_other_way():
    seen = []
    in_turn(3, [lambda number: seen.append(f"a{number}"), lambda number: seen.append(f"b{number}")])
    assert seen == ["a0", "b0", "b1", "a1", "a2", "b2"]


def test_given_a_process_with_children_then_their_processor_time_counts_and_one_that_is_gone_counts_nothing():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with process(sys.executable, "-c", code) as running:
        own = psutil.Process(running.pid)
        wait_until(lambda: cpu_s(running.pid) > 0.3, description="the child has worked")
        times = own.cpu_times()
        assert cpu_s(running.pid) > times.user + times.system + 0.2
    assert cpu_s(running.pid) == 0.0


@pytest.fixture
def peer(tmp_path):
    started = []

    def make(code, worker=SLEEP):
        errors = tmp_path / "producer.log"
        with errors.open("wb") as said:
            producer = start(sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
        started.append(producer)
        started.append(start(*worker, stdout=subprocess.DEVNULL))
        return Running(started[-1], producer, errors)

    yield make
    for each in started:
        stop(each)
        for pipe in (each.stdin, each.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was asked and never read
                    pipe.close()


ANSWERS = (
    "import sys, json\n"
    "for line in sys.stdin:\n"
    "    count, in_flight = map(int, line.split())\n"
    "    print(json.dumps({'seconds': 2.0, 'latencies': [0.5] * count}), flush=True)\n"
)


def test_given_a_peer_then_a_round_gives_its_answer_and_its_processor_time_and_leaves_it_standing(peer):
    running = peer(ANSWERS)
    found = running.round(3, 2)
    assert (found["seconds"], found["latencies"]) == (2.0, [0.5] * 3)
    assert found["cpu_s"] >= 0.0
    wait_until(lambda: status(running._worker.pid) == psutil.STATUS_STOPPED, description="it stands still")
    assert running.round(1, 1)["latencies"] == [0.5]


def test_given_a_peer_whose_producer_dies_then_it_is_out_with_its_last_words_and_the_others_go_on(peer):
    running = peer("import sys; sys.stdin.readline(); raise SystemExit('no such broker')")
    race = Race(Part("race", "", ""))
    turn = race.turn("odd", 3, lambda count: running.round(count, 2, warm_up=False))
    other = race.turn("other", 4, lambda count: {"seconds": 2.0, "cpu_s": 1.0, "latencies": [0.1] * count})

    in_turn(3, [turn, other])

    assert race.part.skipped == {"odd": "its producer has ended; it last said: no such broker"}
    assert race.rates == {"other": [2.0] * 3}


def test_given_a_peer_that_says_nothing_then_it_is_given_up(peer, monkeypatch):
    monkeypatch.setattr(queue_peers, "ROUND_S", 0.3)
    running = peer("import time; time.sleep(600)", worker=(sys.executable, "-c", "raise SystemExit(3)"))
    wait_until(lambda: running._worker.poll() is not None, description="its worker has ended")
    with pytest.raises(PeerFailed, match=r"no 3 results within 0 s; its worker ended with 3"):
        running.round(3, 2, warm_up=False)


def test_given_an_environment_that_cannot_be_made_then_the_reason_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "environments")
    requirements = tmp_path / "odd.txt"
    requirements.write_text("odd==1\n", encoding="utf-8")

    monkeypatch.setattr(environments.sys, "executable", "/bin/false")
    with pytest.raises(environments.CannotInstall, match="no word why"):
        environments.environment("odd", requirements)

    monkeypatch.setattr(environments.sys, "executable", str(tmp_path / "none"))
    with pytest.raises(environments.CannotInstall, match="No such file"):
        environments.environment("odd", requirements)


def test_given_an_environment_of_the_same_requirements_then_it_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "environments")
    requirements = tmp_path / "good.txt"
    requirements.write_text("good==1\n", encoding="utf-8")
    ran = []
    monkeypatch.setattr(environments, "_run", lambda *command: (ran.append(command), made()))

    def made():
        (tmp_path / "environments/good").mkdir(parents=True, exist_ok=True)

    first = environments.environment("good", requirements)
    assert environments.environment("good", requirements) == first == tmp_path / "environments/good/bin"
    assert len(ran) == 2  # a venv and its packages, once
    requirements.write_text("good==2\n", encoding="utf-8")
    environments.environment("good", requirements)
    assert len(ran) == 4
    assert os.fspath(requirements) in ran[-1]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [({"a": 2.0, "b": 1.0, "c": None}, "b"), ({"a": None, "b": None, "c": 3.0}, "c")],
)
def test_given_several_settings_then_the_quickest_that_runs_is_taken(monkeypatch, tmp_path, seconds, expected):
    @contextmanager
    def started(peer, setting, port, logs):
        if seconds[setting] is None:
            raise PeerFailed("it does not answer")
        yield SimpleNamespace(round=lambda count, in_flight: {"seconds": seconds[setting]})

    monkeypatch.setattr(queue_peers, "started", started)
    peer = Peer("odd", (), ("odd",), 1, {name: ((), {}) for name in seconds})

    assert quickest(peer, 1, tmp_path) == expected

    seconds.update(dict.fromkeys(seconds))
    with pytest.raises(PeerFailed, match="a: it does not answer; b: it does not answer; c: it does not answer"):
        quickest(peer, 1, tmp_path)
