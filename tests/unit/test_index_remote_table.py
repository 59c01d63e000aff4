"""Tables in stores: of addresses as anywhere, of files in the store itself, which never lead out of its folder."""

from __future__ import annotations

import io
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipfleet.index.manifest import signature
from clipfleet.index.part import Part, part_of
from clipfleet.index.sources import Columns, Failure, Item, Seen, Skip, SourceError, Table, open_sources
from clipfleet.index.sources.far import AT_ONCE
from clipfleet.producer.requests import Url
from support.index_events import JPG, failures, items
from support.object_store import S3, memory

__all__ = ["memory"]


def events(*names, **columns):
    with Seen() as seen:
        return [event for source in open_sources(list(names), Columns(**columns)) for event in source.events(seen)]


def parquet(**columns):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=50)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"url,id,year\nhttps://e.com/1.jpg,a,1999\nhttps://e.com/2.jpg,b,2000\n"),
        ("t.jsonl", b'{"url":"https://e.com/1.jpg","id":"a","year":1999}\n{"url":"https://e.com/2.jpg","id":"b"}\n'),
        ("t.parquet", parquet(url=["https://e.com/1.jpg", "https://e.com/2.jpg"], id=["a", "b"], year=[1999, 2000])),
    ],
)
def test_given_a_table_of_addresses_in_a_store_when_read_then_it_is_as_one_here(memory, name, content):
    memory.pipe(f"/c/{name}", content)
    (source,) = open_sources([f"memory://c/{name}"])
    assert "addresses in column 'url'" in source.about
    assert len(list(source.count())) == 2
    found = events(f"memory://c/{name}")
    assert items(found) == {"a": Url("https://e.com/1.jpg"), "b": Url("https://e.com/2.jpg")}
    assert str(found[0].metadata["year"]) == "1999"
    assert found[0].label == f"memory:///c/{name}:{2 if name.endswith('.csv') else 1}"


def test_given_a_table_of_files_in_a_store_when_read_then_they_are_those_beside_it(memory):
    memory.pipe({f"/c/in/{n}.jpg": JPG + b"%d" % n for n in range(200)})
    memory.pipe("/c/t.parquet", parquet(path=[f"in/{n}.jpg" for n in range(200)], caption=[str(n) for n in range(200)]))
    found = events("memory://c/t.parquet")
    assert (len(found), failures(found)) == (200, [])
    assert {id_: picture.read() for id_, picture in items(found).items()} == {
        f"in/{n}.jpg": JPG + b"%d" % n for n in range(200)
    }
    assert (found[7].size, found[7].metadata) == (len(JPG) + 1, {"path": "in/7.jpg", "caption": "7"})
    before = signature(found[7])
    assert signature(events("memory://c/t.parquet")[7]) == before
    memory.pipe("/c/in/7.jpg", JPG)
    assert signature(events("memory://c/t.parquet")[7]) != before


def test_given_paths_that_lead_out_or_nowhere_when_read_then_each_fails_alone(memory):
    memory.pipe("/secret.jpg", JPG)
    memory.pipe("/c/in/1.jpg", JPG)
    memory.pipe("/cc/1.jpg", JPG)
    rows = (
        *("in/1.jpg", "./in/../in/1.jpg", "memory://c/in/1.jpg"),
        *(
            "../secret.jpg",
            "/secret.jpg",
            "in/../../secret.jpg",
            "memory://secret.jpg",
            "memory://cc/1.jpg",
            "s3://b/x",
        ),
        *("in/2.jpg", "in", ""),
    )
    memory.pipe("/c/t.csv", ("file,n\n" + "".join(f"{row},{n}\n" for n, row in enumerate(rows))).encode())
    found = events("memory://c/t.csv", id="n")
    assert list(items(found)) == ["0", "1", "2"]
    codes = dict(failures(found))
    assert {codes[str(n)] for n in range(3, 9)} == {"fetch_forbidden"}
    assert [codes[str(n)] for n in range(9, 12)] == ["fetch_failed", "unsupported_media", "bad_request"]


def test_given_a_row_that_comes_again_when_read_then_the_same_file_is_a_duplicate_and_another_an_error(memory):
    memory.pipe({"/c/1.jpg": JPG, "/c/2.jpg": JPG})
    memory.pipe("/c/t.csv", b"file,id\n1.jpg,a\n./1.jpg,a\n2.jpg,a\n")
    found = events("memory://c/t.csv")
    assert [type(event) for event in found] == [Item, Skip, Failure]


def test_given_a_table_that_breaks_off_when_read_then_the_rows_before_that_are_there(memory):
    memory.pipe({f"/c/{n}.jpg": JPG for n in range(600)})
    whole = parquet(path=[f"{n}.jpg" for n in range(600)])
    begin = pq.ParquetFile(io.BytesIO(whole)).metadata.row_group(10).column(0).dictionary_page_offset
    memory.pipe("/c/t.parquet", whole[:begin] + b"\0" * 60 + whole[begin + 60 :])
    found = events("memory://c/t.parquet")
    ids = [event.id for event in found if isinstance(event, Item)]
    assert 64 < len(ids) <= 500
    assert ids == [f"{n}.jpg" for n in range(len(ids))]
    (failure,) = [event for event in found if isinstance(event, Failure)]
    assert (failure.whole, "no whole parquet" in failure.error.message) == (True, True)


def test_given_a_store_that_fails_while_a_table_is_read_when_read_then_the_table_is_incomplete(memory, monkeypatch):
    memory.pipe("/c/t.csv", b"url\n" + b"https://e.com/1.jpg\n" * 10)
    (source,) = open_sources(["memory://c/t.csv"])

    def broken(self, *_):
        raise RuntimeError("the line is down")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFile.read", broken, raising=False)
    with Seen() as seen:
        found = list(source.events(seen))
    assert [(event.whole, "the line is down" in event.error.message) for event in found] == [(True, True)]


def test_given_many_rows_when_read_then_the_store_is_asked_about_several_at_once(memory, monkeypatch):
    memory.pipe({f"/c/{n}.jpg": JPG for n in range(64)})
    memory.pipe("/c/t.csv", ("file\n" + "".join(f"{n}.jpg\n" for n in range(64))).encode())
    sources = open_sources(["memory://c/t.csv"])
    together = threading.Barrier(AT_ONCE, timeout=30)
    asked = type(memory).info

    def met(self, path, **options):
        together.wait()
        return asked(self, path, **options)

    monkeypatch.setattr(type(memory), "info", met)
    with Seen() as seen:
        assert len([each for source in sources for each in source.events(seen)]) == 64


def test_given_a_path_root_or_a_disk_s_address_when_read_then_files_are_those_of_this_machine(memory, tmp_path):
    (tmp_path / "1.jpg").write_bytes(JPG)
    (tmp_path / "t.csv").write_text("file\n1.jpg\nout.jpg\n")
    (tmp_path / "out.jpg").symlink_to("/etc/passwd")
    memory.pipe("/c/t.csv", b"file\n1.jpg\nout.jpg\n")
    for found in (events("memory://c/t.csv", root=tmp_path), events(f"file://{tmp_path}/t.csv")):
        assert items(found) == {"1.jpg": tmp_path / "1.jpg"}
        assert [code for _, code in failures(found)] == ["fetch_forbidden"]


def test_given_patterns_and_parts_when_opened_then_each_table_is_one_and_rows_are_divided(memory):
    for n in range(3):
        rows = "".join(f"https://e.com/{n}-{row}.jpg\n" for row in range(20))
        memory.pipe(f"/c/t{n}.csv", f"url\n{rows}".encode())
    sources = open_sources(["memory://c/*.csv"])
    assert [type(source) for source in sources] == [Table] * 3
    assert len(items(events("memory://c/t{0..1}.csv"))) == 40
    halves = []
    for number in (1, 2):
        with Seen() as seen:
            half = [each for source in part_of(sources, Part(number, 2)) for each in source.events(seen)]
        halves.append(set(items(half)))
    assert (len(halves[0] | halves[1]), halves[0] & halves[1]) == (60, set())
    memory.pipe("/c/x.csv", b"a,b\n1,2\n")
    with pytest.raises(SourceError, match="none of its columns"):
        open_sources(["memory://c/x.csv"])
    memory.pipe("/c/empty.parquet", b"")
    assert failures(events("memory://c/empty.parquet")) == [("memory:///c/empty.parquet", "fetch_failed")]


def test_given_a_table_in_a_bucket_when_read_then_its_pictures_are_those_of_the_bucket(monkeypatch):
    with S3(monkeypatch) as s3:
        fs = s3.files()
        fs.mkdir("pictures")
        for n in range(40):
            fs.pipe(f"pictures/set/in/{n}.jpg", JPG + b"%d" % n)
        names = [f"in/{n}.jpg" if n % 2 else f"s3://pictures/set/in/{n}.jpg" for n in range(40)]
        fs.pipe("pictures/set/t.parquet", parquet(path=[*names, "in/none.jpg"]))
        found = events("s3://pictures/set/t.parquet")
        assert {id_: picture.read() for id_, picture in items(found).items()} == {
            f"in/{n}.jpg": JPG + b"%d" % n for n in range(40)
        }
        assert [code for _, code in failures(found)] == ["fetch_failed"]
