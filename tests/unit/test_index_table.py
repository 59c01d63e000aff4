"""Tables of addresses and of paths, as spreadsheets and other people write them."""

from __future__ import annotations

import datetime as dt
import json
import os
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.index.sources import Columns, Failure, Item, Seen, Skip, SourceError, Table, open_sources
from clipfleet.producer.requests import Url


@pytest.fixture
def table(tmp_path):
    """Events of a table of this content: ``table("a.csv", "url\\n...")``."""

    def read(name, content, **columns):
        path = tmp_path / name
        path.write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
        with Seen() as seen:
            return list(Table(path, Columns(**columns)).events(seen))

    return read


def items(events):
    return {event.id: event.picture for event in events if isinstance(event, Item)}


def failures(events):
    return [(event.label.rpartition("/")[2], str(event.error.code)) for event in events if isinstance(event, Failure)]


def addresses(*rows):
    return {key: Url(f"https://e.com/{name}.jpg") for key, name in rows}


def test_given_ids_and_other_columns_when_read_then_they_are_ids_and_metadata(table):
    (item,) = table("a.csv", "sku,Image_URL,name,year\n 7 , https://e.com/7.jpg ,Größe,1999\n", id="sku")
    assert item.label.endswith("a.csv:2")
    assert (item.id, item.picture) == ("7", Url("https://e.com/7.jpg"))
    assert item.metadata == {"Image_URL": "https://e.com/7.jpg", "name": "Größe", "year": "1999"}


def test_given_no_ids_when_read_then_the_address_is_the_id(table):
    assert items(table("a.csv", "url\nhttps://e.com/a.jpg\n")) == {"https://e.com/a.jpg": Url("https://e.com/a.jpg")}


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(("name", "between"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t")])
def test_given_any_dialect_when_read_then_its_columns_are_found(table, ends, bom, name, between):
    rows = (
        ["url", "id", "a, b"],
        ["https://e.com/1.jpg", "1", f'"x{between}y ""z"" {ends}w"'],
        [],
        ["https://e.com/2.jpg", "2", ""],
    )
    text = bom + "".join(between.join(row) + ends for row in rows).replace("a, b", "caption")
    events = table(name, text)
    assert items(events) == addresses(("1", 1), ("2", 2))
    assert [event.metadata["caption"] for event in events] == [f'x{between}y "z" {ends}w', ""]


def test_given_ragged_rows_nuls_and_foreign_bytes_when_read_then_each_bad_row_is_named_and_the_rest_goes_on(table):
    events = table(
        "a.csv",
        b"url,id,caption\nhttps://e.com/1.jpg,1\nhttps://e.com/2.jpg,2,a,b\n\n,3,x\n"
        b"https://e.com/4.jpg,4,caf\xe9 \0\nhttps://e.com/\xe9.jpg,5,x\nhttps://e.com/6.jpg,,x\nhttps://e.com/7.jpg,7,x",
    )
    assert items(events) == addresses(("4", 4), ("7", 7))
    assert failures(events) == [(f"a.csv:{line}", "bad_request") for line in (2, 3, 5, 7, 8)]
    assert next(event for event in events if isinstance(event, Item)).metadata["caption"] == "caf\\xe9 \0"


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("", "bad_request"),
        ("   ", "bad_request"),
        ("example.com/a.jpg", "bad_request"),
        ("//example.com/a.jpg", "bad_request"),
        ("/etc/passwd", "bad_request"),
        ("file:///etc/passwd", "fetch_forbidden"),
        ("FILE:///etc/passwd", "fetch_forbidden"),
        ("gopher://127.0.0.1:6379/_FLUSHALL", "fetch_forbidden"),
        ("data:image/png;base64,AAAA", "fetch_forbidden"),
        ("s3://bucket/a.jpg", "fetch_forbidden"),
    ],
)
def test_given_an_address_that_no_worker_fetches_when_read_then_it_fails_here(table, address, code):
    assert failures(table("a.csv", f'url,id\n"{address}",1\nhttps://e.com/a.jpg,2\n')) == [("a.csv:2", code)]


def test_given_one_id_again_when_read_then_the_same_picture_is_passed_over_and_another_fails(table):
    rows = [("a", 1), ("a", 1), ("b", 1), ("a", 2)]
    events = table("a.csv", "url,id\n" + "".join(f"https://e.com/{name}.jpg,{key}\n" for name, key in rows))
    assert [type(event) for event in events] == [Item, Skip, Failure, Item]
    assert events[1].reason == Skip.DUPLICATE
    assert (events[2].id, str(events[2].error.code)) == ("1", "bad_request")


def test_given_a_quote_that_nobody_closes_or_an_endless_line_when_read_then_what_comes_after_is_found(table):
    good = "https://e.com/{}.jpg,{}\n".format
    for bad in ('"' + "x" * 200_000 + "\n", "x" * 3_000_000 + "\n", '"https://e.com/x\n' + good(9, 9) * 7_000):
        events = table("a.csv", "url,id\n" + good(1, 1) + bad + good(2, 2))
        assert addresses(("1", 1), ("2", 2)).items() <= items(events).items()
        assert ("a.csv:3", "bad_request") in failures(events)


def test_given_json_lines_when_read_then_values_keep_their_kinds(table):
    lines = [
        '{"url": "https://e.com/1.jpg", "id": 1, "tags": ["a", {"b": null}], "score": NaN, "year": 1999}',
        '{"url": "https://e.com/2.jpg", "id": "two"}',
    ]
    events = table("a.jsonl", "\n\n".join(lines))
    assert items(events) == addresses(("1", 1), ("two", 2))
    assert events[0].metadata == {
        "url": "https://e.com/1.jpg", "tags": ["a", {"b": None}], "score": None, "year": 1999,
    }  # fmt: skip


def test_given_lines_that_are_no_objects_when_read_then_each_fails_alone(table):
    good = '{"url": "https://e.com/1.jpg", "id": "1"}'
    bad = [
        *("{", "[1]", "null", "\ufffe", '{"url": 1, "id": "2"}', '{"url": "https://e.com/2.jpg"}', '{"id": "2"}'),
        *('{"url": "https://e.com/2.jpg", "id": 2.5}', '{"url": "https://e.com/2.jpg", "id": true}'),
        *("[" * 200_000, "x" * 2_000_000, f'{{"url": "https://e.com/2.jpg", "id": 2, "x": {"[" * 40}{"]" * 40}}}'),
        *('{"url": "https://e.com/2.jpg", "id": 2, "x": 1%s}' % ("0" * zeros) for zeros in (20, 5_000)),
    ]
    events = table("a.ndjson", "\n".join([*bad, good]))
    assert items(events) == addresses(("1", 1))
    assert failures(events) == [(f"a.ndjson:{line}", "bad_request") for line in range(1, len(bad) + 1)]


def test_given_parquet_when_read_then_rows_come_batch_by_batch_and_dates_are_text(tmp_path, table):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    number = 700
    columns = {
        "url": [f"https://e.com/{row}.jpg" if row != 5 else None for row in range(number)],
        "id": list(range(number)),
        "day": [dt.date(2026, 1, 1)] * number,
        "price": [Decimal("1.50")] * number,
        "jpg": [b"\xff"] * number,
        "nested": [{"a": [1.0, float("nan")]}] * number,
    }
    pq.write_table(pa.table(columns), tmp_path / "made.parquet")
    data = (tmp_path / "made.parquet").read_bytes()
    events = table("a.parquet", data)
    assert len(items(events)) == number - 1
    assert failures(events) == [("a.parquet:6", "bad_request")]
    assert events[0].metadata == {
        "url": "https://e.com/0.jpg", "day": "2026-01-01", "price": "1.50", "nested": {"a": [1.0, None]},
    }  # fmt: skip
    assert len(list(Table(tmp_path / "a.parquet", Columns()).count())) == number
    # Cut or damaged it is a failure of the whole, and never an exception
    for broken in (data[:-100], data[: len(data) // 2], b"", data[:200] + os.urandom(2_000) + data[2_200:]):
        (tmp_path / "a.parquet").write_bytes(broken)
        (source,) = open_sources([tmp_path / "a.parquet"])
        with Seen() as seen:
            *_, last = source.events(seen)
        assert last.whole
        assert last.error.code == "fetch_failed"


@pytest.fixture
def tree(tmp_path):
    """A folder with a table's pictures, and one beside it that is nobody's business."""
    for name in ("mine/pics/a.jpg", "mine/b.jpg", "secret/key.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def read_paths(tree, *paths, **columns):
    lines = (json.dumps({"path": path}) for path in paths)
    (tree / "mine" / "t.jsonl").write_text("\n".join(lines))
    with Seen() as seen:
        return list(Table(tree / "mine" / "t.jsonl", Columns(path="path", **columns)).events(seen))


def test_given_paths_when_read_then_they_are_below_the_tables_folder_and_are_the_ids(tree):
    names = ["pics/a.jpg", "./b.jpg", f" {tree}/mine/b.jpg", "pics/../pics//a.jpg", "missing.jpg"]
    events = read_paths(tree, *names)
    assert items(events) == {name: tree / "mine" / name for name in ("pics/a.jpg", "b.jpg", "missing.jpg")}
    assert [type(event) for event in events] == [Item, Item, Skip, Skip, Item]
    assert events[0].metadata == {"path": "pics/a.jpg"}


def test_given_paths_that_lead_out_when_read_then_they_are_forbidden_whatever_is_there(tree):
    (tree / "mine" / "link.jpg").symlink_to("../secret/key.jpg")
    (tree / "mine" / "door").symlink_to(tree / "secret")
    (tree / "mine-too").mkdir()
    names = [
        *("/etc/passwd", "../secret/key.jpg", "pics/../../secret/key.jpg", f"{tree}/secret/key.jpg", "link.jpg"),
        *(
            "door/key.jpg",
            "/proc/self/environ",
            "../mine-too/x.jpg",
            "..",
            "/",
            "../missing.jpg",
            "pics/a.jpg/../../../secret",
        ),
    ]
    events = read_paths(tree, *names)
    assert not items(events)
    assert [code for _, code in failures(events)] == ["fetch_forbidden"] * len(names)
    assert [code for _, code in failures(read_paths(tree, "", " ", "a\0.jpg", None, 7))] == ["bad_request"] * 5


def test_given_another_root_when_read_then_paths_are_relative_to_it_and_stay_in_it(tree):
    events = read_paths(tree, "key.jpg", "../mine/b.jpg", root=tree / "secret")
    assert items(events) == {"key.jpg": tree / "secret" / "key.jpg"}
    assert [code for _, code in failures(events)] == ["fetch_forbidden"]
    assert set(items(read_paths(tree, "/etc/passwd", root=tree.__class__("/")))) == {"etc/passwd"}


def test_given_a_link_to_the_tables_folder_when_read_then_paths_are_found_and_named_as_given(tree):
    (tree / "way").symlink_to("mine")
    (tree / "mine" / "t.csv").write_text(f"path\npics/a.jpg\n{tree}/mine/b.jpg\n")
    with Seen() as seen:
        assert items(Table(tree / "way" / "t.csv", Columns()).events(seen)) == {
            "pics/a.jpg": tree / "mine" / "pics" / "a.jpg",
            "b.jpg": tree / "mine" / "b.jpg",
        }


@pytest.mark.parametrize(
    ("header", "columns", "said"),
    [
        ("a,b", {}, "none of its columns is named like addresses or paths of pictures: 'a', 'b'"),
        ("url,path", {}, "may be in 'url' or in 'path'"),
        ("url", {"url": "URL"}, "has no column 'URL'"),
        ("url", {"id": "sku"}, "has no column 'sku'"),
        ("a,b", {"url": "a", "path": "b"}, "give one of them"),
        ("", {}, "has no header"),
        ("\xff\xfeu".encode("latin-1"), {}, "UTF-16"),
    ],
)
def test_given_columns_that_cannot_be_told_when_opened_then_it_says_what_is_there(table, header, columns, said):
    with pytest.raises(SourceError, match=said):
        table("a.csv", header, **columns)
    if not header:
        with pytest.raises(SourceError, match="holds no JSON object"):
            table("a.jsonl", "[]\n")


def test_when_opened_then_it_says_what_was_guessed(tmp_path):
    (tmp_path / "a.csv").write_text("Key;URL;caption;caption;\n")
    assert Table(tmp_path / "a.csv", Columns()).about == (
        f"{tmp_path}/a.csv: CSV, addresses in column 'URL', id is column 'Key', "
        "metadata 'caption', 'caption.2', 'column5'"
    )
    (tmp_path / "a.tsv").write_text("Image_Path\n")
    assert Table(tmp_path / "a.tsv", Columns()).about.endswith("TSV, paths in column 'Image_Path', id is the path")


def test_given_a_table_that_cannot_be_read_when_opened_then_it_is_a_failure_like_others(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (source,) = open_sources([tmp_path / "pipe.csv"])
    with Seen() as seen:
        (failure,) = source.events(seen)
    assert (failure.error.code, failure.whole, len(list(source.count()))) == ("unsupported_media", True, 1)


@given(content=st.binary(max_size=2_000), name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl"]))
@settings(max_examples=200, deadline=None)
def test_given_any_bytes_when_read_then_every_row_is_an_item_or_a_failure(tmp_path_factory, content, name):
    head = b'{"url": "https://e.com/1.jpg"}\n' if name.endswith("l") else b"url,\turl\n"
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(head + content)
    source = Table(path, Columns())
    with Seen() as seen:
        events = list(source.events(seen))
    assert all(isinstance(event, Item | Failure | Skip) for event in events)
    assert len(list(source.count())) == len(events)
