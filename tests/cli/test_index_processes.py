"""``clipfleet index --processes``: several producers, one manifest; and nobody outlives the command."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile

import pytest

from clipfleet.index import Manifest, Meter, Processes, Send, Sending, State, index_sources
from clipfleet.index.processes import ProducerDied
from support.cli import descendants, end, running, start
from support.index_events import write_pictures
from support.waiting import wait_until

PICTURES = 700


@pytest.fixture
def here(tmp_path):
    write_pictures(tmp_path / "pics", PICTURES)
    return tmp_path


def write_shard(path):
    with tarfile.open(path, "w") as archive:
        for number in range(10):
            info = tarfile.TarInfo(f"{number}.png")
            info.size = 9
            archive.addfile(info, io.BytesIO(b"member %02d" % number))


def test_given_processes_when_indexed_then_all_is_told_once_in_order_and_failures_of_files_too(cli, fleet, here):
    write_shard(here / "shard.tar")
    (here / "pics" / "huge.png").write_bytes(b"")
    os.truncate(here / "pics" / "huge.png", (64 << 20) + 1)
    done = cli("index", "shard.tar", "pics", "--processes", "2", "--json", "--manifest", "m", **fleet)
    assert done.code == 3, done.err
    assert [line["id"] for line in done.lines if not line["ok"]] == ["huge.png"]
    assert [line["error"]["code"] for line in done.lines if not line["ok"]] == ["too_large"]
    told = [line["id"] for line in done.lines if line["ok"]]
    assert sorted(told) == sorted(
        [f"{number:04}.png" for number in range(PICTURES)] + [f"shard/{number}" for number in range(10)]
    )
    with Manifest(here / "m") as manifest:
        assert manifest.counts() == {State.DONE: PICTURES + 10, State.SENT: 1}
    again = cli("index", "shard.tar", "pics", "--processes", "2", "--json", "--manifest", "m", **fleet)
    assert [line["id"] for line in again.lines] == ["huge.png"]
    (summary,) = [json.loads(line) for line in again.err.splitlines() if '"event": "indexed"' in line]
    assert summary["earlier"] == PICTURES + 10


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_given_the_command_ends_in_the_middle_then_its_processes_end_too_and_it_goes_on(cli, fleet, here, number):
    args = ("index", "pics", "--processes", "2", "--json", "--manifest", "m")
    process = start(*args, cwd=here, **fleet)
    assert process.stdout.readline()
    children = descendants(process.pid)
    assert len(children) >= 2
    end(process, number)
    wait_until(lambda: not running(children), 10, "its processes are gone")
    with Manifest(here / "m") as manifest:
        known = {id_ for page in manifest.done() for id_ in page}
    rest = {line["id"] for line in cli(*args, **fleet).lines}
    assert not rest & known
    assert rest | known == {f"{number:04}.png" for number in range(PICTURES)}


def test_given_a_producer_process_that_dies_then_the_run_ends_and_says_so(fleet, here):
    with Processes(2, fleet["CLIPFLEET_REDIS_URL"], queue=fleet["CLIPFLEET_QUEUE"], lane="bulk") as pool:
        told = []

        def first(outcome):
            if not told:
                pool._children[0].process.kill()
            told.append(outcome)

        with pytest.raises(ProducerDied, match="exit code -9"):
            index_sources(pool, [here / "pics"], on_outcome=first)
        assert told


def test_given_processes_when_what_cannot_travel_so_is_asked_then_each_item_fails_with_its_reason(fleet, here):
    with Processes(1, fleet["CLIPFLEET_REDIS_URL"], queue=fleet["CLIPFLEET_QUEUE"]) as pool:
        report = index_sources(pool, [here / "pics"], sending=Sending(send=Send.URL), meter=Meter())
    assert (report.indexed, sum(report.failed.values())) == (0, PICTURES)
