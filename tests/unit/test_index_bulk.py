"""What an import is made of, without a server: part files read back, the last row of each id, places to put files."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipfleet.index import SourceError
from clipfleet.index.bulk import StagingError, open_staging
from clipfleet.index.bulk.files import RowFile
from clipfleet.index.bulk.journal import Journal, StagedFile
from clipfleet.index.bulk.latest import Latest
from clipfleet.index.sinks import SinkError, SinkRow, open_sink
from clipfleet.index.sinks.written import Written
from clipfleet.store import CollectionInfo, Field, Row, encode_rows
from support.object_store import memory

__all__ = ["memory"]

DIMENSION = 4


def vector(number):
    return np.random.default_rng(number).normal(size=DIMENSION).astype(np.float32)


def parts(folder, count, **options):
    with open_sink("parquet", folder, rows_per_part=700, **options) as sink:
        sink.write([SinkRow(f"{n}.jpg", vector(n), {"n": n, "größe": "ü"}) for n in range(count)], model="m")
    return folder


@pytest.mark.parametrize("begin", [0, 1, 511, 512, 699, 700, 1_300, 1_499, 1_500])
def test_given_part_files_when_read_from_any_row_on_then_the_rows_are_those_written(tmp_path, begin):
    with Written(parts(tmp_path / "h", 1_500)) as written:
        assert (written.model, written.dimension, written.rows) == ("m", DIMENSION, 1_500)
        found = [row for page in written.read(begin) for row in page]
        assert [id_ for page in written.ids() for id_ in page] == [f"{n}.jpg" for n in range(1_500)]
    assert [row.metadata for row in found] == [{"n": n, "größe": "ü"} for n in range(begin, 1_500)]
    assert all(np.array_equal(row.vector, vector(n)) for n, row in enumerate(found[:20], begin))


def test_given_vectors_of_float16_when_read_then_they_are_float32(tmp_path):
    with Written(parts(tmp_path / "h", 3, dtype="float16")) as written:
        ((first, *_),) = written.read()
    assert first.vector.dtype == np.float32
    assert np.abs(first.vector - vector(0)).max() < 1e-3


def test_given_what_is_no_folder_of_whole_parts_when_opened_then_it_says_what_it_is(tmp_path):
    with pytest.raises(SinkError, match="nowhere is not there"):
        Written(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SinkError, match=r"empty holds no clipfleet\.json"):
        Written(tmp_path / "empty")
    with open_sink("npy", tmp_path / "npy") as sink:
        sink.write([SinkRow("a", vector(1))], model="m")
    with pytest.raises(SinkError, match="npy holds no parts of"):
        Written(tmp_path / "npy")
    holed = parts(tmp_path / "holed", 1_500)
    (holed / "part_1.parquet").unlink()
    with pytest.raises(SinkError, match=r"part_1\.parquet is not there"):
        Written(holed)
    cut = parts(tmp_path / "cut", 1_500)
    (cut / "part_2.parquet").write_bytes((cut / "part_2.parquet").read_bytes()[:-20])
    with pytest.raises(SinkError, match=r"part_2\.parquet: no whole part"):
        Written(cut)
    (cut / "clipfleet.json").write_text("[]")
    with pytest.raises(SinkError, match="holds no parts of"):
        Written(cut)


def test_given_a_folder_that_is_being_written_when_opened_then_it_is_left_alone(tmp_path):
    folder = parts(tmp_path / "h", 10)
    with open_sink("parquet", folder), pytest.raises(SinkError, match="in use by another program"), Written(folder):
        pass
    with Written(folder), pytest.raises(SinkError, match="another program"), open_sink("parquet", folder):
        pass
    with Written(folder), pytest.raises(SinkError, match="another program"), Written(folder):
        pass


def test_given_vectors_of_another_length_or_metadata_that_are_none_when_read_then_it_is_an_error(tmp_path):
    folder = parts(tmp_path / "h", 3)
    table = pq.read_table(folder / "part_0.parquet")
    pq.write_table(table.set_column(2, "metadata", pa.array(["{}", "[]", "{}"])), folder / "part_0.parquet")
    with Written(folder) as written, pytest.raises(SinkError, match="no JSON object"):
        list(written.read())
    pq.write_table(table.set_column(1, "vector", pa.array([[1.0], [2.0], [3.0]])), folder / "part_0.parquet")
    with Written(folder) as written, pytest.raises(SinkError, match="not all vectors have 4 dimensions"):
        list(written.read())
    pq.write_table(table.drop(["vector"]), folder / "part_0.parquet")
    with Written(folder) as written, pytest.raises(SinkError, match="no whole part"):
        list(written.read())


def test_given_ids_that_come_again_when_noted_then_the_last_row_of_each_counts():
    ids = [random.Random(3).choice("abcdefgh") + str(n % 7) for n in range(500)]
    last = {id_: row for row, id_ in enumerate(ids)}
    with Latest() as latest, Latest() as same, Latest() as other:
        for begin in range(0, 500, 64):
            latest.note(ids[begin : begin + 64])
        same.note(ids)
        other.note(ids[::-1])
        assert [row for row, id_ in enumerate(ids) if latest.is_last(id_, row)] == sorted(last.values())
        assert (latest.rows, len(latest)) == (500, len(last))
        assert latest.digest == same.digest != other.digest


def test_given_rows_when_written_for_milvus_then_the_columns_are_the_collection_s(tmp_path):
    info = CollectionInfo("c", "f", DIMENSION, (Field("year", "int"), Field("who", "str")))
    encoded, failed = encode_rows([Row("a", vector(1), {"year": 1999}), Row("b", vector(2), {})], info)
    with (tmp_path / "x.parquet").open("wb") as raw:
        file = RowFile(raw, info)
        file.write(encoded)
        file.write([])
        file.close()
    table = pq.read_table(tmp_path / "x.parquet")
    assert (failed, file.rows) == ({}, 2)
    assert table.column_names == ["id", "vector", "metadata", "year", "year__set", "who", "who__set"]
    # A list of fixed length, float16 and null are each no rows, or the end of the server.
    assert table.schema.field("vector").type == pa.list_(pa.field("element", pa.float32()))
    assert [table[name].to_pylist() for name in ("year", "year__set", "who", "who__set")] == [
        [1999, 0],
        [True, False],
        ["", ""],
        [False, False],
    ]


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_given_a_place_when_files_are_put_there_then_they_are_whole_and_milvus_hears_their_own_names(
    tmp_path, memory, kind
):
    (tmp_path / "s").mkdir()
    name = str(tmp_path / "s") if kind == "folder" else "memory://bucket/a/b"
    place = open_staging(name)
    assert (place.read("x"), Journal.read(place)) == (None, None)

    place.put("x", io.BytesIO(b"rows"))
    journal = Journal({"collection": "c"}, files=[StagedFile("x", 3, 5, failed=2, job=7, done=True)], staged=True)
    journal.write(place)

    assert (place.read("x"), Journal.read(place)) == (b"rows", journal)
    assert (journal.rows, journal.failed, journal.name()) == (3, 2, f"clipfleet-{journal.token}-00001.parquet")
    assert place.seen("x") == (f"{tmp_path}/s/x" if kind == "folder" else "a/b/x")
    assert open_staging(name, "/in/side/").seen("x") == "/in/side/x"
    journal.forget(place)
    place.remove("x")
    assert (place.read("x"), Journal.read(place)) == (None, None)
    if kind == "folder":
        assert list((tmp_path / "s").iterdir()) == []


def test_given_a_place_that_cannot_be_used_when_opened_or_written_then_it_says_so(tmp_path, memory):
    with pytest.raises(StagingError, match="no such folder"):
        open_staging(str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="nonsense"):
        open_staging("nonsense://x")
    (tmp_path / "s").mkdir()
    place = open_staging(str(tmp_path / "s"))
    (tmp_path / "s").rmdir()
    with pytest.raises(StagingError, match="cannot be written"):
        place.write("x", b"")
    for text in ("", "[]", '{"files": [{}]}', json.dumps({"files": [], "of": {}, "unknown": 1})):
        memory.pipe("/bucket/clipfleet-import.json", text.encode())
        with pytest.raises(ValueError, match="cannot be understood"):
            Journal.read(open_staging("memory://bucket"))
