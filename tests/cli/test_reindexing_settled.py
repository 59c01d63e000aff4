"""What becomes of the manifest of a reindexing that has ended."""

from __future__ import annotations

import signal
import subprocess
import sys

from clipfleet.cli.reindexing import Reindex, settle
from clipfleet.cli.run import Run
from clipfleet.cli.settings import Flags
from clipfleet.index import Manifest, State

KILLED = """
import os, signal, sys
from clipfleet.index import Manifest
with Manifest(sys.argv[1]) as manifest:
    for number in range(1_000):
        manifest.answered(f"of an earlier life {number}", b"")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_when_settled_then_the_manifest_takes_the_place_of_the_ordinary_one_and_of_what_a_kill_has_left(tmp_path):
    # Given an ordinary manifest whose run was killed, so that a part of it lies in a file beside it
    ordinary, own = tmp_path / "ordinary.sqlite", tmp_path / "own.sqlite"
    done = subprocess.run([sys.executable, "-c", KILLED, ordinary], check=False)
    assert done.returncode == -signal.SIGKILL
    assert ordinary.with_name("ordinary.sqlite-wal").stat().st_size > 0
    with Manifest(own) as manifest:
        manifest.answered("a", b"1")
        manifest.tell("into", "new")

    settle(Run("index", Flags()), Reindex("live", afterwards=ordinary), own)

    assert not own.exists()
    with Manifest(ordinary) as manifest:
        assert [id_ for page in manifest.ids() for id_ in page] == ["a"]
        assert (manifest.counts(), manifest.told("into")) == ({State.DONE: 1}, "")


def test_given_an_ordinary_run_going_on_when_settled_then_it_keeps_its_manifest_and_that_is_said(tmp_path, capsys):
    ordinary, own = tmp_path / "ordinary.sqlite", tmp_path / "own.sqlite"
    with Manifest(own) as manifest:
        manifest.tell("into", "new")
    with Manifest(ordinary) as held:
        held.answered("a", b"1")
        settle(Run("index", Flags()), Reindex("live", afterwards=ordinary), own)
        assert held.counts() == {State.DONE: 1}
    assert "sends all once more" in capsys.readouterr().err
    with Manifest(own) as manifest:
        assert manifest.told("into") == ""
