"""The demo from beginning to end, with a tiny model and a few pictures; ``make demo`` runs the real one in CI."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import clean_environment

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "examples" / "pictures"
TINY = REPOSITORY / "tests" / "unit" / "data" / "tiny-bundle"

# The demo takes the demo model whatever the environment says; only the test tells it otherwise.
SCRIPT = """
import sys
import clipfleet.cli.commands.demo as demo
from clipfleet.cli import main
demo.WORKER_FLAGS = ("--model", sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""

pytestmark = pytest.mark.usefixtures("redis_binary")


def demo(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(TINY), "demo", *args],
        cwd=folder,
        env=clean_environment(CLIPFLEET_QUEUE="other", REDIS_URL="redis://127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.slow
def test_given_pictures_when_the_demo_runs_then_every_question_has_hits_and_it_can_run_again(tmp_path):
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    for name in ("red-heart", "cherries", "metro"):
        shutil.copy(PICTURES / f"{name}.png", chosen)
    done = demo(tmp_path, "--json", "--pictures", str(chosen))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(line["id"] for line in lines if "id" in line) == ["cherries.png", "metro.png", "red-heart.png"]
    answers = [line for line in lines if "hits" in line]
    assert len(answers) == 11
    assert all(len(line["hits"]) == 3 for line in answers)
    assert answers[-1]["hits"][0]["id"] == "red-heart.png"
    assert answers[-1]["hits"][0]["score"] == pytest.approx(1, abs=1e-3)

    again = demo(tmp_path, "--pictures", str(chosen))
    assert again.returncode == 0, again.stderr
    assert "3 of 3 pictures indexed" in again.stdout
    assert "a red heart: 3 hits in" in again.stdout
    assert "Everything is stopped again" in again.stdout


def test_given_a_folder_that_is_somebody_elses_when_the_demo_runs_then_it_is_left_alone(tmp_path):
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "precious").touch()
    done = demo(tmp_path)
    assert done.returncode == 1
    assert "left alone" in done.stderr
    assert (tmp_path / ".demo" / "precious").exists()


@pytest.mark.slow
def test_given_no_picture_when_the_demo_runs_then_it_fails(tmp_path):
    (tmp_path / "empty").mkdir()
    done = demo(tmp_path, "--pictures", str(tmp_path / "empty"))
    assert done.returncode == 1
    assert "no pictures found" in done.stdout
