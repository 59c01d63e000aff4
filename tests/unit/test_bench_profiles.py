"""What py-spy has seen becomes pictures: one for each kind of process, small, and without folders of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

if not (Path(__file__).parents[2] / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)

from bench import flame, profiles

REPOSITORY = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
HEAD = 'process 1:"/home/me/.venv/bin/python -m bench.profiles queue 10"'
SUPERVISOR = f'{HEAD};process 2:"/home/me/.venv/bin/python -m bench.ours redis://127.0.0.1:1"'
WORKER = f'{SUPERVISOR};process 3:"/home/me/.venv/bin/python -m clipfleet.worker.process 6"'


def test_given_stacks_of_several_processes_then_each_goes_to_the_kind_of_the_innermost():
    rows = [
        f"{HEAD};<module> (bench/profiles.py:9);produce (bench/ours.py:3);map (producer/face.py:3) 2",
        f"{HEAD};<module> (bench/profiles.py:9);jpeg (bench/pictures.py:3);Image.save (PIL/Image.py:3) 8",
        f"{SUPERVISOR};run (worker/supervisor.py:5) 3",
        f"{WORKER};Thread._bootstrap (threading.py:1);Intake.run (worker/intake.py:7);decode (schemas/codec.py:8) 4",
        f"{WORKER};Thread._bootstrap (threading.py:1);Intake.run (worker/intake.py:9);decode (schemas/codec.py:1) 5",
    ]
    assert profiles.by_kind(flame.folded(rows)) == {
        "client": {("produce (bench/ours.py)", "map (producer/face.py)"): 2},
        "supervisor": {("run (worker/supervisor.py)",): 3},
        "worker": {("Intake.run (worker/intake.py)", "decode (schemas/codec.py)"): 9},  # lines do not count
    }


def test_given_one_process_alone_then_all_of_it_is_the_client():
    rows = [f"{HEAD};<module> (bench/profiles.py:9);BaseEventLoop._run_once (asyncio/base_events.py:3) 2"]
    assert profiles.by_kind(flame.folded(rows)) == {
        "client": {("BaseEventLoop._run_once (asyncio/base_events.py)",): 2}
    }


def test_given_what_is_done_before_the_first_request_and_a_process_that_has_no_stack_then_they_are_left_out():
    rows = [
        f"{HEAD} 7",
        f"{WORKER};assemble (worker/assembly.py:3);load (models/library.py:4) 7",
        f"{HEAD};<module> (x.py:1);_find_and_load (<frozen importlib._bootstrap>:1);f (y.py:2) 7",
    ]
    assert profiles.by_kind(flame.folded(rows)) == {}


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        ("f (worker/intake.py:12)", "f (worker/intake.py)"),
        ("f (/home/me/.venv/lib/python3.11/site-packages/redis/client.py:1)", "f (redis/client.py)"),
        ("f (/home/me/secret/tool.py:1)", "f (tool.py)"),
        ("read (libc.so.6)", "read (libc.so.6)"),
        ("<lambda> (<string>:1)", "<lambda> (<string>)"),
        ("no place", "no place"),
    ],
)
def test_given_a_frame_then_neither_its_line_nor_a_folder_of_the_machine_is_shown(seen, shown):
    assert flame.frame(seen) == shown


def test_given_samples_then_boxes_are_as_wide_as_their_share_and_what_is_too_narrow_is_not_drawn():
    stacks = {("a (worker/a.py)", "b (redis/b.py)"): 600, ("a (worker/a.py)", "<c> (x.py)"): 399, ("d (y.py)",): 1}
    text = flame.draw("a & b", stacks)
    boxes = {
        group.findtext(f"{SVG}title"): float(group.find(f"{SVG}rect").get("width"))
        for group in ET.fromstring(text).iter(f"{SVG}g")
    }
    assert list(boxes) == ["a (worker/a.py) 99.9%", "<c> (x.py) 39.9%", "b (redis/b.py) 60.0%"]
    assert boxes["b (redis/b.py) 60.0%"] == pytest.approx(0.6 * flame.WIDTH, abs=1)
    assert boxes["a (worker/a.py) 99.9%"] == pytest.approx(0.999 * flame.WIDTH, abs=1)
    assert flame.busiest(stacks, 2) == [("b (redis/b.py)", 0.6), ("<c> (x.py)", 0.399)]


def test_given_very_many_stacks_then_the_picture_stays_small():
    stacks = {tuple(f"function_{number % (7 + row)} (redis/x.py)" for row in range(60)): 1 for number in range(20_000)}
    assert len(flame.draw("many", stacks)) < profiles.LARGEST


def test_given_no_samples_then_there_is_no_picture():
    with pytest.raises(ValueError, match="no samples"):
        flame.draw("none", {})


def test_given_no_py_spy_then_the_command_says_what_to_install(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bench", "profile", "queue", "--out", tmp_path],
        cwd=REPOSITORY,
        env={"PATH": str(tmp_path), "CLIPFLEET_BENCH_SPY": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "queue: py-spy is not installed: python -m pip install py-spy\n"


def test_given_a_program_that_is_looked_at_then_what_it_does_is_in_the_picture(tmp_path, monkeypatch, capsys):
    """py-spy itself is played: it writes what it has seen to where it is told, of the command that it is given."""
    spy = tmp_path / "py-spy"
    spy.write_text(
        f"#!{sys.executable}\nimport sys\nwords = sys.argv\n"
        "done = words[-3]\n"
        "assert words[words.index('--') + 2:] == ['-m', 'bench.profiles', 'queue', done, '3', ''], words\n"
        f"open(words[words.index('--output') + 1], 'w').write('''{WORKER};run (worker/intake.py:7) 90\n"
        f"{WORKER};run (worker/intake.py:7);select (selectors.py:1) 10\n''')\n"
    )
    spy.chmod(0o755)
    monkeypatch.setenv("CLIPFLEET_BENCH_SPY", str(spy))
    assert profiles.main(["queue", "--seconds", "3", "--out", str(tmp_path)]) == 1  # what was looked at has failed
    assert "queue has failed" in capsys.readouterr().err
    assert not list((tmp_path / "performance").iterdir())

    spy.write_text(spy.read_text() + "open(done, 'w')\n")
    assert profiles.main(["queue", "--seconds", "3", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "performance" / "flame-queue-worker.svg").read_text(encoding="utf-8")
    assert "run (worker/intake.py) 100.0%" in text
    assert "without 10% of its samples" in text
