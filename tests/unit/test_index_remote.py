"""Stores by fsspec: its own memory for what a store may do, and S3 as moto has it."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
from fsspec.registry import _registry

from clipfleet.index.files import MAX_FILE_BYTES
from clipfleet.index.manifest import signature
from clipfleet.index.sending import Sending
from clipfleet.index.sources import Failure, Item, Seen, Skip, SourceError, Stored, open_sources
from support.object_store import S3, memory

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["memory"]

JPG = b"\xff\xd8\xff-a picture-"


def events(*names):
    with Seen() as seen:
        return [event for source in open_sources(list(names)) for event in source.events(seen)]


def read(found):
    return {
        event.id: event.picture.read() if isinstance(event.picture, Stored) else event.picture
        for event in found
        if isinstance(event, Item)
    }


def failures(found):
    return [(event.id, str(event.error.code)) for event in found if isinstance(event, Failure)]


def skipped(found):
    return sum(event.count for event in found if isinstance(event, Skip))


def shard():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, data in (("1.jpg", JPG), ("1.json", b'{"year": 1999}'), ("2.jpg", JPG * 2)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return out.getvalue()


def archive():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("a/1.jpg", JPG)
    return out.getvalue()


def test_given_a_folder_of_a_store_when_read_then_it_is_as_a_folder_here(memory):
    for name in ("1.jpg", "a/2.PNG", "a/b/größe 3.webp", "a/notes.txt", ".hidden/4.jpg", "a/.5.jpg"):
        memory.pipe(f"/c/{name}", JPG + name.encode())
    found = events("memory://c")
    assert read(found) == {name: JPG + name.encode() for name in ("1.jpg", "a/2.PNG", "a/b/größe 3.webp")}
    assert (failures(found), skipped(found)) == ([], 1)
    item = next(event for event in found if isinstance(event, Item) and event.id == "a/2.PNG")
    assert (item.label, item.metadata) == ("memory:///c/a/2.PNG", {"path": "a/2.PNG", "name": "2.PNG"})
    assert item.size == len(JPG) + 7


def test_given_a_pattern_or_one_file_when_read_then_what_it_stands_for_is(memory):
    for name in ("1.jpg", "2.jpg", "3.png", "sub/4.jpg"):
        memory.pipe(f"/c/{name}", JPG)
    assert sorted(read(events("memory://c/*.jpg"))) == ["1.jpg", "2.jpg"]
    assert sorted(read(events("memory://c/**/*.jpg"))) == ["1.jpg", "2.jpg", "sub/4.jpg"]
    assert sorted(read(events("memory://c/{1.jpg,3.png}"))) == ["1.jpg", "3.png"]
    memory.pipe("/c/picture", JPG)
    assert read(events("memory://c/picture")) == {"picture": JPG}


def test_given_shards_and_zips_in_a_store_when_read_then_they_are_as_those_here(memory):
    memory.pipe("/c/s-000.tar.gz", shard())
    memory.pipe("/c/s-001.tar.gz", shard()[:-6])
    memory.pipe("/c/z.zip", archive())
    found = events("memory://c/s-{000..001}.tar.gz", "memory://c/*.zip")
    assert read(found) == {"s-000/1": JPG, "s-000/2": JPG * 2, "s-001/1": JPG, "s-001/2": JPG * 2, "z/a/1.jpg": JPG}
    assert failures(found) == [("s-001", "fetch_failed")]
    first = next(event for event in found if isinstance(event, Item))
    assert first.metadata == {"path": "s-000/1.jpg", "name": "1.jpg", "year": 1999}
    (missing,) = [event for event in events("memory://c/s-{000..002}.tar.gz") if getattr(event, "id", "") == "s-002"]
    assert missing.whole


def test_given_a_picture_that_vanishes_or_is_too_large_when_sent_then_it_fails_alone(memory):
    memory.pipe("/c/1.jpg", JPG)
    memory.pipe("/c/2.jpg", bytes(MAX_FILE_BYTES + 1))
    found = events("memory://c")
    assert failures(found) == [("2.jpg", "too_large")]
    (item,) = [event for event in found if isinstance(event, Item)]
    assert Sending().request(item).inputs["image"] == JPG
    memory.rm("/c/1.jpg")
    with pytest.raises(Exception, match="cannot be read") as error:
        Sending().request(item)
    assert str(error.value.code) == "fetch_failed"


def test_given_a_changed_picture_when_looked_at_again_then_its_signature_differs_though_nothing_was_read(memory):
    def now():
        (item,) = events("memory://c")
        return signature(item)

    memory.pipe("/c/1.jpg", JPG)
    before = now()
    assert now() == before
    memory.pipe("/c/1.jpg", JPG)
    assert now() != before


def test_given_what_is_not_there_or_cannot_be_read_so_when_opened_then_it_says_so(memory, tmp_path):
    with pytest.raises(FileNotFoundError, match="memory://nowhere"):
        open_sources(["memory://nowhere"])
    with pytest.raises(FileNotFoundError, match=r"memory://c/\*\.tar"):
        open_sources(["memory://c/*.tar"])
    with pytest.raises(FileNotFoundError, match=r"memory://c/t\.csv"):
        open_sources(["memory://c/t.csv"])
    with pytest.raises(SourceError, match=r"nonsense://"):
        open_sources(["nonsense://x"])


def test_given_a_store_that_breaks_off_when_listed_then_the_folder_is_incomplete(memory, monkeypatch):
    memory.pipe("/c/1.jpg", JPG)
    memory.pipe("/c/d/2.jpg", JPG)
    listing = type(memory).ls

    def broken(self, path, *args, **kwargs):
        if path.endswith("/d"):
            raise RuntimeError("the line is down")
        return listing(self, path, *args, **kwargs)

    monkeypatch.setattr(type(memory), "ls", broken)
    found = events("memory://c")
    assert list(read(found)) == ["1.jpg"]
    (failure,) = [event for event in found if isinstance(event, Failure)]
    assert (failure.whole, "the line is down" in str(failure.error)) == (True, True)


@pytest.fixture
def s3(monkeypatch) -> Iterator[str]:
    """A bucket of moto's S3, in a process of its own."""
    with S3(monkeypatch):
        yield "s3://pictures"


def test_given_a_bucket_of_s3_when_read_then_pictures_shards_and_zips_are_found(s3):
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.mkdir("pictures")
    for n in range(30):
        fs.pipe(f"pictures/a/{n % 3}/{n}.jpg", JPG + b"%d" % n)
    fs.pipe("pictures/a/notes.txt", b"")
    fs.pipe("pictures/shards/s-0.tar.gz", shard())
    fs.pipe("pictures/z.zip", archive())

    found = events(f"{s3}/a", f"{s3}/shards/s-{{0..1}}.tar.gz", f"{s3}/z.zip")

    pictures = read(found)
    assert {id_: data for id_, data in pictures.items() if data.startswith(JPG) and id_[0].isdigit()} == {
        f"{n % 3}/{n}.jpg": JPG + b"%d" % n for n in range(30)
    }
    assert {"s-0/1", "s-0/2", "z/a/1.jpg"} < set(pictures)
    assert (failures(found), skipped(found)) == ([("s-1", "fetch_failed")], 1)
    first = next(event for event in found if isinstance(event, Item))
    before = signature(first)
    fs.pipe(first.label, JPG)
    (after,) = [event for event in events(first.label) if isinstance(event, Item)]
    assert after.picture.version != first.picture.version
    assert signature(after) != before
    with pytest.raises(FileNotFoundError):
        open_sources([f"{s3}/nowhere/"])
    with pytest.raises((SourceError, FileNotFoundError)):
        open_sources(["s3://no-such-bucket/x"])


def test_given_an_address_and_no_package_for_it_when_opened_then_the_error_names_the_package_and_tables(monkeypatch):
    monkeypatch.delitem(_registry, "https", raising=False)
    monkeypatch.setitem(sys.modules, "fsspec.implementations.http", None)
    with pytest.raises(SourceError, match=r"aiohttp.*in a table: .* column url"):
        open_sources(["https://example.com/a.png"])
