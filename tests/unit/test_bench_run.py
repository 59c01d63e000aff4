"""One part of the benchmark after the other: what becomes of one is no matter to the next."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

if not (Path(__file__).parents[2] / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)

from bench import __main__ as bench

MODULE = """
import os, signal
from bench.results import Part

def breaks(options):
    raise ValueError("a reason\\nin two lines")

def dies(options):
    os.kill(os.getpid(), signal.SIGKILL)

def hangs(options):
    while True:
        signal.pause()

def works(options):
    part = Part("start", "Starting", "about")
    part.add("speed", [1.0] * options.rounds, "x")
    return part
"""


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Sets what a part does."""
    (tmp_path / "parts_of_a_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(Path(bench.__file__).parents[1])
    before = signal.getsignal(signal.SIGTERM)
    yield lambda name, does: monkeypatch.setitem(bench.PARTS, name, f"parts_of_a_test:{does}")
    signal.signal(signal.SIGTERM, before)


def test_given_parts_that_break_or_hang_then_the_others_are_measured_and_a_line_says_what_happened(tmp_path, part):
    part("queue", "breaks")
    part("single", "dies")
    part("batched", "hangs")
    part("start", "works")
    words = ["queue", "single", "batched", "start", "--rounds", "2", "--part-minutes", "0.05", "--out", str(tmp_path)]
    assert bench.main(words) == 1
    found = json.loads((tmp_path / "performance/results.json").read_text(encoding="utf-8"))["parts"]
    assert {one["name"]: one["skipped"] for one in found} == {
        "queue": {"all of it": "ValueError: a reason in two lines"},
        "single": {"all of it": "it ended with -9"},
        "batched": {"all of it": "it was not done after 3 s"},
        "start": {},
    }
    assert [figure["values"] for figure in found[3]["figures"]] == [[1.0, 1.0]]
    assert all(one["took_s"] > 0 and one["machine"] and one["versions"] for one in found)
    page = (tmp_path / "performance.md").read_text(encoding="utf-8")
    assert "- all of it: ValueError: a reason in two lines" in page
    assert "| speed |" in page


def test_given_no_time_that_is_left_then_what_was_not_begun_says_so(tmp_path, part):
    part("queue", "hangs")
    part("start", "works")
    assert bench.main(["queue", "start", "--minutes", "0.03", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "performance/results.json").read_text(encoding="utf-8"))["parts"]
    assert [one["skipped"]["all of it"] for one in found] == [
        "it was not done after 2 s",
        "no time was left of 0.03 minutes",
    ]


def test_given_a_run_that_is_stopped_then_what_was_measured_is_kept_and_shown(tmp_path, part, monkeypatch):
    part("single", "works")
    monkeypatch.setitem(bench.PARTS, "start", "parts_of_a_test:hangs")
    whole = bench.measured

    def stopped(name, options, limit_s):
        if name == "start":
            raise SystemExit(143)  # what SIGTERM becomes
        return whole(name, options, limit_s)

    monkeypatch.setattr(bench, "measured", stopped)
    with pytest.raises(SystemExit):
        bench.main(["single", "start", "--out", str(tmp_path)])
    assert "| speed |" in (tmp_path / "performance.md").read_text(encoding="utf-8")


def test_given_a_flame_graph_that_is_there_then_its_part_links_it(tmp_path, part):
    part("start", "works")
    (tmp_path / "performance").mkdir()
    (tmp_path / "performance" / "flame-start-worker.svg").write_text("<svg/>")
    assert bench.main(["start", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "performance.md").read_text(encoding="utf-8")
    assert "Where its time goes: [start-worker](performance/flame-start-worker.svg)." in page
