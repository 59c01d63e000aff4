"""The benchmarks run, and say what they found: small ones, whose figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
if not (REPOSITORY / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)


def bench(folder, *words):
    command = [sys.executable, "-m", "bench", *words, "--rounds", "2", "--out", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((folder / "performance/results.json").read_text(encoding="utf-8"))["parts"]
    return {part["name"]: part for part in parts}, (folder / "performance.md").read_text(encoding="utf-8")


@pytest.mark.timeout(300)  # a machine that does much else
def test_given_the_queue_and_a_single_call_then_they_are_measured_and_shown_together(tmp_path):
    parts, page = bench(tmp_path, "single", "queue", "--count", "500", "--calls", "20", "--peers", "")
    assert list(parts) == ["queue", "single"]  # in the page's order
    assert {figure["name"] for figure in parts["queue"]["figures"]} >= {
        "bare script: no-op requests",
        "clipfleet: no-op requests",
        "clipfleet / bare script",
    }
    for figure in parts["queue"]["figures"]:
        assert len(figure["values"]) == 2
        assert all(value > 0 for value in figure["values"])
    ours = next(figure for figure in parts["queue"]["figures"] if figure["name"] == "clipfleet: no-op requests")
    assert sum(int(size) * count for size, count in ours["batches"].items()) == 1_000  # each request once

    assert "## What the queue costs" in page
    assert "## A single call on an idle fleet" in page


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_given_the_parts_that_need_a_backlog_or_several_workers_then_they_run_too(tmp_path):
    parts, page = bench(tmp_path, "growth", "workers", "--count", "300", "--backlogs", "50,500", "--seconds", "0.5")
    assert "both: 500 queued / 50" in page
    plots = [plot["name"] for part in parts.values() for plot in part["plots"]]
    assert plots == ["backlog", "workers", "workers-batch", "workers-p99"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_given_a_load_that_does_not_wait_then_throughput_latency_and_batches_are_drawn(tmp_path):
    parts, page = bench(tmp_path, "load", "--count", "400", "--pictures", "40", "--seconds", "1")
    assert "open loop, Poisson" in page
    assert [plot["name"] for plot in parts["load"]["plots"]] == [
        f"{work}-{what}" for work in ("no-op", "picture") for what in ("throughput", "latency", "batches")
    ]
