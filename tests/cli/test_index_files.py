"""``clipfleet index --to``: vectors into files, each once however often the command is killed."""

from __future__ import annotations

import signal

import numpy as np
import pyarrow.parquet as pq
import pytest

from clipfleet.index import Manifest, State, index_sources
from clipfleet.index.sinks import open_sink
from clipfleet.producer import Client, requests
from support.cli import start
from support.index_events import write_pictures

PICTURES = 1_500


@pytest.fixture
def here(tmp_path):
    write_pictures(tmp_path / "pics", PICTURES)
    return tmp_path


def rows_of(out):
    """Id and vector of each row, in the order of the parts."""
    ids, vectors = [], []
    for number in range(len(list((out / "img_emb").glob("*.npy")))):
        ids += pq.read_table(out / "metadata" / f"metadata_{number}.parquet")["image_path"].to_pylist()
        vectors += list(np.load(out / "img_emb" / f"img_emb_{number}.npy"))
    return dict(zip(ids, vectors, strict=True)), ids


@pytest.mark.chaos
def test_given_kills_on_the_way_when_indexed_into_files_then_each_row_is_there_once_and_right(cli, fleet, here):
    args = ("index", "pics", "--to", "npy", "--out", "out", "--rows-per-part", "100", "--json")
    for told in (1, 150, 400):
        with start(*args, cwd=here, **fleet) as process:
            for _ in range(told):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
    done = cli(*args, **fleet)
    assert done.code == 0, done.err
    rows, ids = rows_of(here / "out")
    assert len(ids) == PICTURES
    assert set(rows) == {f"{number:04}.png" for number in range(PICTURES)}
    with Client(fleet["CLIPFLEET_REDIS_URL"], queue=fleet["CLIPFLEET_QUEUE"]) as client:
        names = list(rows)[::50]
        asked = client.map(requests.embed_image((here / "pics" / name).read_bytes()) for name in names)
        for name, result in zip(names, asked, strict=True):
            assert np.array_equal(rows[name], np.asarray(result.vector))
    assert "earlier" in cli(*args[:-1], **fleet).out
    assert len(rows_of(here / "out")[1]) == PICTURES
    assert cli(*args, "--fresh", **fleet).code == 2
    assert cli("index", "pics", "--to", "npy", **fleet).code == 2


def test_given_a_part_that_nobody_was_told_of_when_gone_on_then_its_rows_are_not_written_again(fleet, here):
    def run(manifest):
        with (
            Client(fleet["CLIPFLEET_REDIS_URL"], queue=fleet["CLIPFLEET_QUEUE"]) as client,
            open_sink("npy", here / "out", rows_per_part=1_000) as sink,
        ):
            return index_sources(client, [here / "pics"], manifest=manifest, sink=sink)

    with Manifest(here / "m") as manifest:
        assert run(manifest).indexed == PICTURES
        # The last transaction of a killed run is lost: the parts are whole, and the rows are known as sent.
        manifest._db.execute("UPDATE item SET state = ?", (State.SENT,))
        manifest.tell("parts", "0")
        assert (run(manifest).earlier, manifest.counts()) == (PICTURES, {State.DONE: PICTURES})
    assert len(rows_of(here / "out")[1]) == PICTURES
