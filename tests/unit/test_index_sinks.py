"""Part files: whole or not there, never written twice, readable as clip-retrieval's own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.index.ledger import Ledger, UnderWay
from clipfleet.index.manifest import Known, Manifest, State
from clipfleet.index.sinks import SinkError, SinkRow, open_sink
from clipfleet.index.sinks import parts as parts_module
from clipfleet.index.sinks.columns import Columns

KINDS = ("npy", "parquet")


def vector(number, dimension=8):
    made = np.random.default_rng(number).normal(size=dimension).astype(np.float32)
    return made / np.linalg.norm(made)


def rows(first, count, **metadata):
    return [SinkRow(f"{n}.jpg", vector(n), {"n": n, **metadata}) for n in range(first, first + count)]


def answer(number, model="m"):
    return SimpleNamespace(error=None, model=model, vector=SimpleNamespace(buffer=vector(number).tobytes()))


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_given_rows_when_written_as_npy_then_vectors_and_metadata_stand_side_by_side(tmp_path):
    with open_sink("npy", tmp_path, rows_per_part=4) as sink:
        told = sink.write(rows(0, 9, caption="größe"), model="m")
        assert told == [f"{n}.jpg" for n in range(8)]
        told = sink.close()
        assert told == ["8.jpg"]

    for number, count in ((0, 4), (1, 4), (2, 1)):
        vectors = np.load(tmp_path / f"img_emb/img_emb_{number}.npy")
        table = pq.read_table(tmp_path / f"metadata/metadata_{number}.parquet")
        first = 4 * number
        assert vectors.dtype == np.dtype("<f4")
        assert np.array_equal(vectors, np.stack([vector(n) for n in range(first, first + count)]))
        assert table.column_names == ["image_path", "n", "caption"]
        assert table["image_path"].to_pylist() == [f"{n}.jpg" for n in range(first, first + count)]
        assert table["n"].to_pylist() == list(range(first, first + count))
        assert set(table["caption"].to_pylist()) == {"größe"}
    assert files(tmp_path) == [
        ".clipfleet.lock",
        "clipfleet.json",
        *(f"img_emb/img_emb_{n}.npy" for n in range(3)),
        *(f"metadata/metadata_{n}.parquet" for n in range(3)),
    ]


def test_given_many_parts_when_sorted_by_name_then_both_folders_are_in_the_same_order(tmp_path):
    # Their reader sorts names as text, 10 before 2, and takes the nth of one folder for the nth of the other.
    with open_sink("npy", tmp_path, rows_per_part=1) as sink:
        sink.write(rows(0, 12), model="m")
    named = [sorted(each.name for each in (tmp_path / folder).iterdir()) for folder in ("img_emb", "metadata")]
    numbers = [[name.rpartition("_")[2].partition(".")[0] for name in names] for names in named]
    assert numbers[0] == numbers[1]
    assert numbers[0] != sorted(numbers[0], key=int)


def test_given_rows_when_written_as_parquet_then_nothing_of_them_is_lost(tmp_path):
    odd = {"a": [1, {"b": None}], "image_path": "x", "big": 2**70, "id": "other"}
    given = [SinkRow("a", vector(1), odd), SinkRow("b", vector(2), {})]
    with open_sink("parquet", tmp_path) as sink:
        sink.write(given, model="m")
    table = pq.read_table(tmp_path / "part_0.parquet")
    assert table.column_names == ["id", "vector", "metadata"]
    assert table["id"].to_pylist() == ["a", "b"]
    assert [json.loads(text) for text in table["metadata"].to_pylist()] == [odd, {}]
    assert np.array_equal(np.array(table["vector"].to_pylist(), np.float32), np.stack([vector(1), vector(2)]))


@pytest.mark.parametrize("kind", KINDS)
def test_given_float16_when_written_then_the_cosine_is_kept_to_a_millionth(tmp_path, kind):
    with open_sink(kind, tmp_path, dtype="float16") as sink:
        sink.write([SinkRow(str(n), vector(n, 512)) for n in range(50)], model="m")
    if kind == "npy":
        half = np.load(tmp_path / "img_emb/img_emb_0.npy")
        assert half.dtype == np.dtype("<f2")
    else:
        half = np.array(pq.read_table(tmp_path / "part_0.parquet")["vector"].to_pylist())
    half = half.astype(np.float64)
    cosines = [vector(n, 512) @ half[n] / np.linalg.norm(half[n]) for n in range(50)]
    assert 1 - min(cosines) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_given_a_result_s_buffer_when_written_then_it_is_the_vector(tmp_path, kind):
    with open_sink(kind, tmp_path) as sink:
        sink.write([SinkRow("a", memoryview(vector(7).tobytes()))], model="m")
        sink.close()
        assert list(sink.held()) == ["a"]


@pytest.mark.parametrize("kind", KINDS)
def test_given_whole_parts_when_opened_again_then_they_are_told_and_never_touched(tmp_path, kind):
    with open_sink(kind, tmp_path, rows_per_part=3) as sink:
        sink.write(rows(0, 7), model="m")
    before = {name: (tmp_path / name).stat() for name in files(tmp_path) if "_" in name}

    with open_sink(kind, tmp_path, rows_per_part=5) as sink:
        assert (sink.parts, sink.last()) == (3, "6.jpg")
        assert list(sink.held()) == [f"{n}.jpg" for n in range(7)]
        sink.write(rows(7, 4), model="m")

    for name, was in before.items():
        now = (tmp_path / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (was.st_ino, was.st_mtime_ns)
    with open_sink(kind, tmp_path) as sink:
        assert list(sink.held()) == [f"{n}.jpg" for n in range(11)]


@pytest.mark.parametrize(
    ("again", "text"),
    [
        ({"kind": "parquet"}, r"to 'npy' and not 'parquet'"),
        ({"dtype": "float16"}, r"dtype 'float32' and not 'float16'"),
        ({"origin": "other"}, r"origin 'images' and not 'other'"),
    ],
)
def test_given_something_else_in_the_folder_when_opened_then_it_is_refused(tmp_path, again, text):
    with open_sink("npy", tmp_path, origin="images") as sink:
        sink.write(rows(0, 1), model="m")
    asked = {"kind": "npy", "origin": "images"} | again
    with pytest.raises(SinkError, match=text), open_sink(asked.pop("kind"), tmp_path, **asked):
        pass


def test_given_vectors_of_another_model_or_length_when_written_then_they_never_mix(tmp_path):
    with open_sink("npy", tmp_path) as sink:
        sink.write(rows(0, 1), model="m")
        with pytest.raises(SinkError, match="model 'm' and not 'other'"):
            sink.write(rows(1, 1), model="other")
        with pytest.raises(SinkError, match="dimension 8 and not 4"):
            sink.write([SinkRow("x", vector(1, 4))], model="m")
        with pytest.raises(SinkError, match="float32, not float64"):
            sink.write([SinkRow("x", np.zeros(8))], model="m")
    with open_sink("npy", tmp_path) as sink, pytest.raises(SinkError, match="model 'm' and not 'other'"):
        sink.write(rows(1, 1), model="other")


def test_given_part_files_of_another_program_when_opened_then_they_are_left_alone(tmp_path):
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/metadata_0.parquet").write_bytes(b"theirs")
    with pytest.raises(SinkError, match="clipfleet has not written"), open_sink("npy", tmp_path):
        pass
    assert (tmp_path / "metadata/metadata_0.parquet").read_bytes() == b"theirs"


def test_given_a_folder_in_use_when_opened_then_the_second_is_refused_and_the_first_goes_on(tmp_path):
    with open_sink("npy", tmp_path) as first:
        with pytest.raises(SinkError, match="by another program"), open_sink("npy", tmp_path):
            pass
        first.write(rows(0, 1), model="m")
    with open_sink("npy", tmp_path) as again:
        assert list(again.held()) == ["0.jpg"]


def test_given_a_file_in_the_way_when_opened_then_the_error_names_the_folder(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SinkError, match=r"out: cannot be written"), open_sink("npy", tmp_path / "out"):
        pass


def test_given_a_disk_that_is_full_when_a_part_is_written_then_nothing_half_is_there(tmp_path, monkeypatch):
    with open_sink("npy", tmp_path, rows_per_part=2) as sink:
        sink.write(rows(0, 2), model="m")

        def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(parts_module.os, "fsync", full)
            with pytest.raises(SinkError, match="No space left"):
                sink.write(rows(2, 2), model="m")
        assert list(sink.held()) == ["0.jpg", "1.jpg"]
        # The rows are still in hand: a disk with room again gets them.
        assert sink.close() == ["2.jpg", "3.jpg"]


CHILD = """
import sys
from types import SimpleNamespace
from pathlib import Path
import numpy as np
from clipfleet.index.sinks import SinkRow, open_sink
out, kind, ids = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with open_sink(kind, out, rows_per_part=3) as sink:
    begin = sum(1 for _ in sink.held())
    for n in range(begin, ids):
        for id in sink.write([SinkRow(str(n), np.full(8, n + 1, np.float32), {"n": n})], model="m"):
            print(id, flush=True)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_given_a_writer_killed_at_any_line_when_it_runs_again_then_each_row_is_there_once(tmp_path, kind):
    told = []
    for stop_after in (1, 5, None):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), kind, "40"], stdout=subprocess.PIPE, text=True
        )
        for count, line in enumerate(child.stdout, 1):
            told.append(line.strip())
            if count == stop_after:
                child.send_signal(signal.SIGKILL)
        child.stdout.close()
        assert child.wait() == (0 if stop_after is None else -signal.SIGKILL)

    with open_sink(kind, tmp_path) as sink:
        held = list(sink.held())
    assert held == [str(n) for n in range(40)]
    # What was told is there; the last part is written by the end, which tells nobody.
    assert set(told) <= set(held)
    assert len(set(told)) == len(told)


def test_given_a_kill_between_the_two_files_of_a_part_when_opened_then_the_orphan_is_replaced(tmp_path):
    with open_sink("npy", tmp_path, rows_per_part=2) as sink:
        sink.write(rows(0, 2), model="m")
    np.save(tmp_path / "img_emb/img_emb_1.npy", np.zeros((2, 8), np.float32))
    (tmp_path / "metadata/.metadata_1.parquet.part").write_bytes(b"half")
    with open_sink("npy", tmp_path, rows_per_part=2) as sink:
        assert sink.parts == 1
        assert not (tmp_path / "metadata/.metadata_1.parquet.part").exists()
        assert sink.write(rows(2, 2), model="m") == ["2.jpg", "3.jpg"]
    assert np.array_equal(np.load(tmp_path / "img_emb/img_emb_1.npy"), np.stack([vector(2), vector(3)]))


def test_given_metadata_that_change_their_types_when_parts_follow_then_columns_stay_and_only_widen(tmp_path):
    def written(metadata):
        with open_sink("npy", tmp_path) as sink:
            sink.write([SinkRow(str(sink.parts), vector(sink.parts), metadata)], model="m")
            sink.close()
            return pq.read_table(tmp_path / f"metadata/metadata_{sink.parts - 1}.parquet").to_pylist()[0]

    assert written({"year": 1999, "ok": True}) == {"image_path": "0", "year": 1999, "ok": True}
    assert written({}) == {"image_path": "1", "year": None, "ok": None}
    assert written({"year": 1.5, "ok": "no"}) == {"image_path": "2", "year": 1.5, "ok": "no"}
    assert written({"year": 7, "ok": True}) == {"image_path": "3", "year": 7.0, "ok": "true"}
    assert written({"tags": ["a"], "image_path": "x"}) == {
        "image_path": "4",
        "year": None,
        "ok": None,
        "tags": '["a"]',
        "metadata.image_path": "x",
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.lists(st.dictionaries(st.text(max_size=3), JSON, max_size=4), min_size=1, max_size=4), max_size=4))
@settings(max_examples=60, deadline=None)
def test_given_any_json_when_made_columns_then_none_fails_and_every_value_can_be_told(parts):
    columns = Columns("image_path")
    for part in parts:
        table = columns.table([str(n) for n in range(len(part))], part)
        for row, told in zip(part, table.to_pylist(), strict=True):
            for key, value in row.items():
                cell = told.get(key)
                if value is None or key == "image_path":
                    assert key == "image_path" or cell is None
                elif isinstance(cell, str) and not isinstance(value, str):
                    assert json.loads(cell) == value
                else:
                    assert cell == (float(value) if isinstance(cell, float) else value)


def test_given_a_fleet_that_changes_its_model_when_few_rows_have_come_then_those_stay_what_they_are(tmp_path):
    with open_sink("npy", tmp_path) as sink:
        ledger = Ledger(None, sink, retry_failed=False)
        ledger.answered(UnderWay("a", "a"), answer(1, "old"))
        ledger.answered(UnderWay("b", "b"), answer(2, "new"))
        with pytest.raises(SinkError, match="model 'old' and not 'new'"):
            ledger.close()
    assert pq.read_table(tmp_path / "metadata/metadata_0.parquet")["image_path"].to_pylist() == ["a"]


def test_given_a_changed_picture_killed_on_its_way_then_its_older_row_does_not_pass_for_it(tmp_path):
    def run(signature, *, killed):
        one = UnderWay("a.png", "a.png", signature)
        with Manifest(tmp_path / "m") as manifest, open_sink("parquet", tmp_path / "out") as sink:
            ledger = Ledger(manifest, sink, retry_failed=False)
            ledger.sent(one)
            if not killed:
                ledger.answered(one, answer(1))
                ledger.close()
            return manifest.known("a.png")

    assert run(b"before", killed=False) == Known(b"before", State.DONE)
    assert run(b"after", killed=True) == Known(b"after", State.SENT)
    with Manifest(tmp_path / "m") as manifest, open_sink("parquet", tmp_path / "out") as sink:
        Ledger(manifest, sink, retry_failed=False)
        assert manifest.known("a.png") == Known(b"after", State.SENT)


@pytest.mark.parametrize("kind", KINDS)
def test_given_a_part_that_was_taken_away_when_gone_on_then_later_ones_are_not_overwritten(tmp_path, kind):
    with open_sink(kind, tmp_path, rows_per_part=2) as sink:
        sink.write(rows(0, 6), model="m")
    (tmp_path / ("part_1.parquet" if kind == "parquet" else "metadata/metadata_1.parquet")).unlink()
    with pytest.raises(SinkError, match="part 1 is not there, though later ones are"):
        open_sink(kind, tmp_path, rows_per_part=2).open()
