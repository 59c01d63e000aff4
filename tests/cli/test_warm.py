"""A command that is forked is for itself and for its caller as one that was started."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.cli import clean_environment
from support.warm import warm

if TYPE_CHECKING:
    from pathlib import Path


def started(*args: str, cwd: Path, env: dict[str, str], stdin: bytes) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "clipfleet.cli", *args], cwd=cwd, env=env, input=stdin, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def timeless(log: str) -> str:
    return re.sub(r'"timestamp": "[^"]+"', "", log)


@pytest.mark.parametrize(
    ("args", "variables", "stdin"),
    [
        (("--version",), {}, b""),
        (("embed", "--image", "not there.png"), {"CLIPFLEET_REDIS_URL": "not a url"}, b""),
        (("embed", "-"), {"CLIPFLEET_REDIS_URL": "not a url"}, b"never read" * 100_000),
        (("embed", "--json", "-"), {"CLIPFLEET_REDIS_URL": "redis://127.0.0.1:1"}, b" " * 100_000 + b"\n"),
        (("pipeline", "show", "mine:flow"), {}, b""),
        (("no-such-command", "\udcff é"), {}, b""),
    ],
)
def test_given_a_command_when_forked_then_code_and_streams_are_those_of_one_started(
    tmp_path: Path, args: tuple[str, ...], variables: dict[str, str], stdin: bytes
) -> None:
    # Given something that is found only in the command's own folder
    (tmp_path / "mine.py").write_text(
        "from clipfleet import pipeline\nflow = pipeline.input('x').map('x', 'y', abs).output('y')\n"
    )
    env = clean_environment(**variables)
    assert warm().serves(env)
    done = warm().run(args, cwd=tmp_path, env=env, stdin=stdin, timeout=60)
    code, out, err = started(*args, cwd=tmp_path, env=env, stdin=stdin)
    assert (done.code, done.out, timeless(done.err)) == (code, out, timeless(err))


def test_given_a_command_that_does_not_end_when_its_time_is_over_then_it_is_killed(tmp_path: Path) -> None:
    env = clean_environment(CLIPFLEET_REDIS_URL="redis://127.0.0.1:1")
    with pytest.raises(subprocess.TimeoutExpired) as failed:
        warm().run(("worker", "--model", "none"), cwd=tmp_path, env=env, stdin=b"", timeout=3)
    # All that it said is there, since nobody holds its streams any more
    assert failed.value.stderr


def test_given_what_python_reads_when_it_starts_then_a_command_is_not_forked() -> None:
    for name in ("PYTHONPATH", "LC_ALL", "PATH", "OMP_NUM_THREADS"):
        assert not warm().serves(clean_environment(**{name: "another"}))
