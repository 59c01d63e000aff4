"""``clipfleet export`` against Milvus Lite: all rows, once each, and the same again after a kill."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

from clipfleet.store import Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.cli import start
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 2_500


@pytest.fixture(scope="module")
def milvus(tmp_path_factory) -> Iterator[str]:
    """A Milvus Lite with 2,500 rows in ``images``, none in ``empty``, and a collection of another program."""
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        store = Store(StoreConfig(server.uri))
        for name in ("images", "empty"):
            store.ensure_collection(name, fingerprint="model-a", dimension=8)
        store.upsert("images", [Row(f"a/{n}.jpg", vector(n), {"n": n, "caption": f"größe {n}"}) for n in range(ROWS)])
        schema = store._connection.schema("theirs")
        from pymilvus import DataType

        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=8)
        store._connection.call("create_collection", "theirs", schema=schema)
        store.close()
        yield server.uri


def vector(number):
    return np.random.default_rng(number).normal(size=8).astype(np.float32)


def number_of(row_id):
    return int(row_id.removeprefix("a/").removesuffix(".jpg"))


IDS = sorted((f"a/{n}.jpg" for n in range(ROWS)), key=str.encode)


def test_given_a_collection_when_exported_as_npy_then_each_row_is_there_once_and_unchanged(cli, milvus, tmp_path):
    done = cli(
        "export", "images", "--to", "npy", "--out", "o", "--rows-per-part", "1000", "--milvus-uri", milvus, "--json"
    )
    assert done.code == 0, done.err
    counts = {"rows": ROWS, "written": ROWS, "parts": 3, "stored": ROWS, "changed": 0}
    assert done.lines == [{"input": "images", "ok": True, **counts, "out": "o"}]
    tables = [pq.read_table(tmp_path / f"o/metadata/metadata_{n}.parquet") for n in range(3)]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["image_path"] for row in rows] == IDS
    assert all(row["n"] == number_of(row["image_path"]) for row in rows)
    assert rows[0]["caption"] == f"größe {rows[0]['n']}"
    vectors = np.concatenate([np.load(tmp_path / f"o/img_emb/img_emb_{n}.npy") for n in range(3)])
    assert np.array_equal(vectors, np.stack([vector(number_of(row_id)) for row_id in IDS]))


@pytest.mark.chaos
def test_given_an_export_killed_on_its_way_when_run_again_then_it_goes_on_and_no_part_is_touched(cli, milvus, tmp_path):
    args = ("export", "images", "--to", "parquet", "--out", "o", "--rows-per-part", "100", "--milvus-uri", milvus)
    child = start(*args, cwd=tmp_path)
    begun = tmp_path / "o/part_2.parquet"
    wait_until(lambda: begun.exists() or child.poll() is not None, 60, "three parts")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "o").glob("part_*.parquet")}
    assert before

    done = cli(*args, "--json")

    assert done.code == 0, done.err
    (line,) = done.lines
    assert (line["rows"], line["parts"]) == (ROWS, 25)
    assert line["written"] == ROWS - 100 * len(before)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    ids = [row_id for n in range(25) for row_id in pq.read_table(tmp_path / f"o/part_{n}.parquet")["id"].to_pylist()]
    assert ids == IDS

    again = cli(*args)
    assert again.code == 0
    assert f"{ROWS:,} rows of 'images' in 25 parts in o, 0 of them written now" in again.out


def test_given_what_cannot_be_exported_when_asked_then_it_says_why_and_what_there_is(cli, milvus, tmp_path):
    to = ("--to", "npy", "--out", "o", "--milvus-uri", milvus)
    nowhere = cli("export", "nowhere", *to)
    assert (nowhere.code, "no collection 'nowhere'" in nowhere.err, "images" in nowhere.err) == (1, True, True)
    theirs = cli("export", "theirs", *to)
    assert (theirs.code, "no collection of clipfleet" in theirs.err) == (1, True)
    empty = cli("export", "empty", *to)
    assert (empty.code, "has no rows" in empty.err) == (1, True)
    (tmp_path / "o").joinpath("x").touch()
    other = cli("export", "images", "--to", "npy", "--out", "o/x", "--milvus-uri", milvus)
    assert (other.code, "o/x: cannot be written" in other.err) == (1, True)


def test_given_a_folder_that_is_not_this_collection_s_when_exported_into_then_it_is_left_alone(cli, milvus, tmp_path):
    to = ("--out", "o", "--milvus-uri", milvus)
    whole = cli("export", "images", "--to", "npy", *to)
    assert (whole.code, "in 1 part in o" in whole.out) == (0, True)
    mixed = cli("export", "images", "--to", "parquet", *to)
    assert (mixed.code, "give each its own folder" in mixed.err) == (1, True)
    again = cli("export", "images", "--to", "npy", "--json", *to)
    assert (again.code, again.lines[0]["written"], again.lines[0]["changed"]) == (0, 0, 0)
    # Rows that the folder lacks, and that come before its last one, are not silently left out.
    store = Store(StoreConfig(milvus))
    store.ensure_collection("images", fingerprint="model-a", dimension=8)
    store.upsert("images", [Row("a/0000.jpg", vector(1), {})])
    try:
        short = cli("export", "images", "--to", "npy", *to)
        # As many as before are not the same ones: one has left, and one has another vector
        store.delete("images", ids=["a/1.jpg"])
        store.upsert("images", [Row("a/2.jpg", vector(1), {})])
        same = cli("export", "images", "--to", "npy", "--json", *to)
    finally:
        store.delete("images", ids=["a/0000.jpg"])
        store.upsert("images", [Row(f"a/{n}.jpg", vector(n), {"n": n, "caption": f"größe {n}"}) for n in (1, 2)])
        store.close()
    assert (short.code, "export it into an empty folder" in short.err) == (3, True)
    (line,) = same.lines
    assert (same.code, line["ok"], line["rows"], line["stored"], line["changed"]) == (3, False, ROWS, ROWS, 3)


def test_given_an_alias_when_exported_then_it_is_the_collection_that_it_stands_for(cli, milvus):
    store = Store(StoreConfig(milvus))
    store.switch("images_live", "images")
    try:
        to = ("--to", "npy", "--out", "o", "--milvus-uri", milvus)
        done = cli("export", "images_live", *to)
        assert (done.code, f"{ROWS:,} rows of 'images_live' in 1 part in o" in done.out) == (0, True), done.err
        # The folder is that collection's, by whichever name
        assert cli("export", "images", *to).code == 0
        store.switch("images_live", "empty")
        other = cli("export", "images_live", *to)
        assert (other.code, "give each its own folder" in other.err) == (1, True)
    finally:
        store._connection.call("drop_alias", "images_live")
        store.close()


@pytest.mark.parametrize("args", [[], ["images"], ["images", "--to", "csv", "--out", "o"]])
def test_given_wrong_usage_when_run_then_exit_code_2(cli, args):
    assert cli("export", *args, "--milvus-uri", "http://127.0.0.1:1").code == 2


def test_given_no_milvus_when_asked_then_it_says_how_to_name_one(cli):
    done = cli("export", "images", "--to", "npy", "--out", "o", REDIS_URL="redis://127.0.0.1:1")
    assert (done.code, "--milvus-uri" in done.err) == (2, True)
