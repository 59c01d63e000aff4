"""Zip archives as others leave them, and as others make them to do harm."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.index.files import MAX_FILE_BYTES
from clipfleet.index.part import Part, part_of
from clipfleet.index.sources import Item, Seen, Skip, Zips, open_sources
from clipfleet.index.sources.zip_stream import ZipStream
from clipfleet.schemas.errors import RequestFailed
from support.index_events import JPG, failures, items, skipped


def archive(*members, method=zipfile.ZIP_DEFLATED, comment=b""):
    """A zip of (name or ZipInfo, content) pairs."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in members:
            made.writestr(name, data)
        made.comment = comment
    return out.getvalue()


@pytest.fixture
def read(tmp_path):
    def reading(data, name="a.zip"):
        path = tmp_path / name
        path.write_bytes(data)
        with Seen() as seen:
            return list(Zips([path], name).events(seen))

    return reading


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_given_pictures_in_a_zip_when_read_then_each_comes_with_its_place(read, method):
    events = read(
        archive(
            ("a/1.jpg", JPG),
            ("a/größe 日本.PNG", JPG * 2),
            ("./b//2.webp", JPG * 3),
            ("/c/3.jpg", JPG * 4),
            ("notes.txt", b"not one"),
            ("inner.zip", b"PK"),
            (".hidden.jpg", JPG),
            ("__MACOSX/a/._1.jpg", JPG),
            ("folder/", b""),
            method=method,
        )
    )
    assert items(events) == {
        "a/a/1.jpg": JPG,
        "a/a/größe 日本.PNG": JPG * 2,
        "a/b/2.webp": JPG * 3,
        "a/c/3.jpg": JPG * 4,
    }
    first = next(event for event in events if isinstance(event, Item))
    assert first.metadata == {"path": "a/a/1.jpg", "name": "1.jpg"}
    assert first.label.endswith("/a.zip/a/1.jpg")
    assert (failures(events), skipped(events)) == ([], 4)


def test_given_names_of_old_programs_when_read_then_they_are_text(read):
    raw = archive(("xxxxx.jpg", JPG), ("yyyy.jpg", JPG * 2), ("a/b.jpg", JPG * 3))
    raw = raw.replace(b"xxxxx.jpg", b"gr\x94\xe1e.jpg")  # code page 437
    raw = raw.replace(b"yyyy.jpg", "öö.jpg".encode())  # UTF-8, and no flag that says so
    raw = raw.replace(b"a/b.jpg", b"a\\b.jpg")
    assert sorted(items(read(raw))) == ["a/a/b.jpg", "a/größe.jpg", "a/öö.jpg"]


def test_given_what_cannot_be_read_when_met_then_it_fails_alone(read):
    link = zipfile.ZipInfo("link.jpg")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    raw = archive(("1.jpg", JPG), (link, b"/etc/passwd"), ("../2.jpg", JPG), ("a/..\\3.jpg", JPG), ("4.jpg", JPG * 4))
    events = read(raw)
    assert failures(events) == [
        ("a/link.jpg", "unsupported_media"),
        ("a/../2.jpg", "bad_request"),
        ("a/a/../3.jpg", "bad_request"),
    ]
    assert sorted(items(events)) == ["a/1.jpg", "a/4.jpg"]


def directory(raw):
    """Where each entry of the directory begins."""
    at, found = 0, []
    while (at := raw.find(b"PK\1\2", at)) >= 0:
        found.append(at)
        at += 4
    return found


def patched(raw, member, offset, form, value):
    """An archive with one field of one directory entry changed."""
    changed = bytearray(raw)
    struct.pack_into(form, changed, directory(raw)[member] + offset, value)
    return bytes(changed)


FLAGS, METHOD, CRC, PACKED, SIZE, OFFSET = 8, 10, 16, 20, 24, 42


@pytest.mark.parametrize(
    ("offset", "form", "value", "code"),
    [
        (FLAGS, "<H", 1, "unsupported_media"),  # encrypted
        (METHOD, "<H", 9, "unsupported_media"),  # deflate64
        (METHOD, "<H", 14, "unsupported_media"),  # lzma
        (METHOD, "<H", 0, "corrupt_image"),
        (CRC, "<L", 1, "corrupt_image"),
        (SIZE, "<L", 3, "corrupt_image"),  # says less than there is: a bomb's way
        (SIZE, "<L", 4000, "corrupt_image"),
        (SIZE, "<L", MAX_FILE_BYTES + 1, "too_large"),
        (SIZE, "<L", 0xFFFFFFFF, "corrupt_image"),  # in a zip64 field that is not there
        (PACKED, "<L", 2, "corrupt_image"),
        (PACKED, "<L", 2**31, "too_large"),
        (PACKED, "<L", 10_000, "fetch_failed"),
        (OFFSET, "<L", 2, "corrupt_image"),
        (OFFSET, "<L", 2**31, "fetch_failed"),
    ],
)
def test_given_a_damaged_or_lying_entry_when_read_then_it_costs_that_member_alone(read, offset, form, value, code):
    raw = archive(("1.jpg", JPG), ("2.jpg", JPG * 20), ("3.jpg", JPG * 3))
    events = read(patched(raw, 1, offset, form, value))
    assert failures(events) == [("a/2.jpg", code)]
    assert items(events) == {"a/1.jpg": JPG, "a/3.jpg": JPG * 3}


def test_given_a_bomb_when_read_then_no_more_is_unpacked_than_a_picture_may_have(read):
    bomb = archive(("1.jpg", bytes(MAX_FILE_BYTES + 1)), ("2.jpg", JPG))
    events = read(bomb)
    assert (failures(events), list(items(events))) == ([("a/1.jpg", "too_large")], ["a/2.jpg"])
    # One that says it is small.
    events = read(patched(bomb, 0, SIZE, "<L", 100))
    assert (failures(events), list(items(events))) == ([("a/1.jpg", "corrupt_image")], ["a/2.jpg"])


def test_given_a_thousand_names_for_one_member_when_read_then_it_is_not_unpacked_a_thousand_times(read):
    data = bytes(200_000)
    packed = zlib.compress(data, wbits=-15)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, zlib.crc32(data), len(packed), len(data), 5, 0)
    body = local + b"0.jpg" + packed
    entries = b"".join(
        struct.pack(
            "<4s6H3L5H2L",
            *(b"PK\1\2", 20, 20, 0, 8, 0, 0, zlib.crc32(data), len(packed), len(data), 8, 0, 0, 0, 0, 0, 0),
        )
        + b"%04d.jpg" % n
        for n in range(1000)
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1000, 1000, len(entries), len(body), 0)
    events = read(body + entries + end)
    assert 0 < len(items(events)) < 400
    assert {code for _, code in failures(events)} == {"bad_request"}


def test_given_one_name_twice_when_read_then_the_same_picture_is_a_duplicate_and_another_a_failure(read):
    with pytest.warns(UserWarning, match="Duplicate name"):
        raw = archive(("1.jpg", JPG), ("1.jpg", JPG), ("1.jpg", JPG * 2))
    events = read(raw)
    assert (list(items(events)), failures(events), skipped(events, Skip.DUPLICATE)) == (
        ["a/1.jpg"],
        [("a/1.jpg", "bad_request")],
        1,
    )


@pytest.mark.parametrize("prefix", [b"", b"#!/bin/sh\nself-extracting\n" * 9])
def test_given_zip64_or_something_before_the_archive_when_read_then_it_is_found(read, prefix):
    raw = archive(("1.jpg", JPG), ("2.jpg", JPG * 2), comment=b"a comment")
    assert items(read(prefix + raw)) == {"a/1.jpg": JPG, "a/2.jpg": JPG * 2}
    assert items(read(prefix + as_zip64(raw))) == {"a/1.jpg": JPG, "a/2.jpg": JPG * 2}


def as_zip64(raw):
    """The same archive with its numbers in the zip64 fields."""
    end_at = raw.rfind(b"PK\5\6")
    _, _, _, _, members, _, offset, _ = struct.unpack_from("<4s4H2LH", raw, end_at)
    entries = b""
    for at in directory(raw):
        head = list(struct.unpack_from("<4s6H3L5H2L", raw, at))
        name = raw[at + 46 : at + 46 + head[10]]
        extra = struct.pack("<2H3Q", 1, 24, head[9], head[8], head[16])
        head[8] = head[9] = head[16] = 0xFFFFFFFF
        head[11] = len(extra)
        entries += struct.pack("<4s6H3L5H2L", *head) + name + extra
    body = raw[:offset] + entries
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, members, members, len(entries), offset)
    place = struct.pack("<4sLQL", b"PK\6\7", 0, len(body), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return body + record + place + end


def test_given_an_archive_that_is_none_or_cut_when_read_then_it_is_incomplete(read, tmp_path):
    raw = archive(*((f"{n}.jpg", JPG) for n in range(5)))
    for data in (b"", b"PK", b"not a zip" * 100, raw[: len(raw) // 2], raw[:-30]):
        (failure,) = read(data)
        assert (failure.whole, str(failure.error.code)) == (True, "fetch_failed")
    with Seen() as seen:
        (missing,) = Zips([tmp_path / "none.zip"], "none.zip").events(seen)
    assert missing.whole


def test_given_a_range_of_archives_when_opened_then_they_are_one_source_whose_parts_are_whole_archives(tmp_path):
    for n in range(3):
        (tmp_path / f"x{n}.zip").write_bytes(archive(("1.jpg", JPG), ("2.jpg", JPG * 2)))
    (source,) = open_sources([str(tmp_path / "x{0..2}.zip")])
    assert "3 zip archives" in source.about
    assert sum(1 for _ in source.count()) == 6
    parts = []
    for number in (1, 2):
        with Seen() as seen:
            (mine,) = part_of([source], Part(number, 2))
            parts.append(sorted(items(mine.events(seen))))
    assert parts == [["x0/1.jpg", "x0/2.jpg", "x2/1.jpg", "x2/2.jpg"], ["x1/1.jpg", "x1/2.jpg"]]


def test_given_many_members_when_listed_then_the_directory_is_never_in_memory(tmp_path):
    class Counting(io.BytesIO):
        most = 0

        def read(self, size=-1):
            self.most = max(self.most, size)
            return super().read(size)

    file = Counting(archive(*((f"{n:06}.jpg", b"") for n in range(5_000))))
    assert sum(1 for _ in ZipStream(file)) == 5_000
    assert file.most <= 0xFFFF + 22


SMALL = archive(("1.jpg", JPG * 3), ("a/2.jpg", JPG), ("é.png", JPG * 9), method=zipfile.ZIP_DEFLATED)


@given(
    cut=st.integers(0, len(SMALL)),
    flips=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(1, 255)), max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_given_any_damage_when_read_then_nothing_but_failures_comes_of_it(cut, flips):
    data = bytearray(SMALL)
    for at, bits in flips:
        data[at] ^= bits
    read = 0
    try:
        stream = ZipStream(io.BytesIO(bytes(data[:cut] if cut % 2 else data)))
        for member in stream:
            try:
                read += len(stream.read(member)) > 0
            except RequestFailed:
                continue
    except RequestFailed:
        pass
    assert read <= 3 or any(flips)
