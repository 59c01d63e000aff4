"""Shards as others leave them: every form of tar, damaged ones, and names that lead elsewhere."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.index.sources import Failure, Item, Seen, Skip, Tars
from clipfleet.index.sources import tar as tar_module
from support.index_events import JPG, failures, items, skipped

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def member(name, data=JPG, **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def tar(*members, form=tarfile.GNU_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return out.getvalue()


def seal(header):
    """A header with its checksum made right."""
    header = bytearray(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def read(path: Path, data: bytes, seen=None):
    path.write_bytes(data)
    with Seen() as own:
        return list(Tars([path], path.name).events(seen or own))


@pytest.fixture
def shard(tmp_path):
    return lambda data, name="s.tar": read(tmp_path / name, data)


def test_given_pictures_with_metadata_beside_them_when_read_then_each_item_carries_its_own(shard):
    events = shard(
        tar(
            member("a/0001.JPG"),
            member("a/0001.json", b'{"year": 1999, "caption": "of json"}'),
            member("a/0001.txt", b"a cat\n"),
            member("a/0002.txt", "größe \udcff".encode("utf-8", "surrogateescape")),
            member("a/0002.cls", b"7"),
            member("a/0002.png", b"other"),
        )
    )
    one, two = events
    assert (one.id, one.label.rpartition("s.tar")[2], one.picture, one.size) == (
        "s/a/0001",
        "/a/0001.JPG",
        JPG,
        len(JPG),
    )
    assert one.metadata == {"path": "s/a/0001.JPG", "name": "0001.JPG", "year": 1999, "caption": "of json"}
    assert two.metadata == {"path": "s/a/0002.png", "name": "0002.png", "caption": r"größe \xff", "cls": 7}


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_given_any_format_when_read_then_long_and_foreign_names_are_whole(shard, form):
    names = [f"{'deep/' * 12}{'n' * 60}{number}" for number in range(3)] + ["größe 猫", "22.05", ".//x"]
    if form != tarfile.USTAR_FORMAT:
        names.append("n" * 300)
    assert list(items(shard(tar(*(member(f"{name}.jpg") for name in names), form=form)))) == [
        f"s/{name.removeprefix('./').removeprefix('/')}" for name in names
    ]


def test_given_gzip_when_read_then_it_is_by_content_and_not_by_name(shard):
    data = gzip.compress(tar(member("a.jpg"), member("b.bin", b"x" * 3_000_000), member("c.jpg")))
    for name in ("s.tar.gz", "s.tgz", "s.tar", "S.TAR.GZ"):
        assert [each.lower() for each in items(shard(data, name))] == ["s/a", "s/c"]


def test_given_members_that_are_no_files_when_read_then_pictures_among_them_are_told_and_nothing_is_opened(shard):
    kinds = {
        "sym.jpg": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        "hard.jpg": {"type": tarfile.LNKTYPE, "linkname": "a.jpg"},
        "chr.jpg": {"type": tarfile.CHRTYPE},
        "fifo.jpg": {"type": tarfile.FIFOTYPE},
        "odd.jpg": {"type": b"Q"},
    }
    events = shard(
        tar(
            member("folder", b"", type=tarfile.DIRTYPE),
            *(member(name, b"", **fields) for name, fields in kinds.items()),
            member("notes", b"", type=tarfile.SYMTYPE, linkname="x"),
            member("last.jpg"),
        )
    )
    assert items(events) == {"s/last": JPG}
    assert failures(events) == [(f"s/{name[:-4]}", "unsupported_media") for name in kinds]
    assert skipped(events) == 1


def test_given_names_that_lead_elsewhere_when_read_then_they_lose_their_root_or_fail(shard):
    names = ("/etc/a.jpg", "../b.jpg", "c/../../d.jpg", "./e.jpg", "._f.jpg", "f..g.jpg")
    events = shard(tar(*map(member, names)))
    assert set(items(events)) == {"s/etc/a", "s/e", "s/f..g"}
    assert failures(events) == [("s/../b", "bad_request"), ("s/c/../../d", "bad_request")]


def test_given_a_member_beyond_the_limit_when_read_then_it_fails_alone_and_is_not_held(shard, monkeypatch):
    monkeypatch.setattr(tar_module, "MAX_FILE_BYTES", 1_000)
    for data in (
        archive := tar(member("a.jpg"), member("b.jpg", bytes(5_000)), member("c.jpg")),
        gzip.compress(archive),
    ):
        events = shard(data)
        assert set(items(events)) == {"s/a", "s/c"}
        assert failures(events) == [("s/b", "too_large")]


def test_given_metadata_that_are_broken_or_huge_when_read_then_the_pictures_stay_and_each_is_told(shard):
    broken = {
        "a": b"{",
        "b": b"[1]",
        "c": b"\xff",
        "d": b'{"x": ' + b"[" * 100_000 + b"}",
        "e": b'{"x": 99999999999999999999}',
        "f": b'{"x": ' + b"1" * 5_000 + b"}",
        "g": b" " * 2_000_000,
    }
    pairs = [part for key, text in broken.items() for part in (member(f"{key}.json", text), member(f"{key}.jpg"))]
    events = shard(tar(*pairs))
    assert set(items(events)) == {f"s/{key}" for key in broken}
    codes = dict.fromkeys(broken, "bad_request") | {"g": "too_large"}
    assert failures(events) == [(f"s/{key}", code) for key, code in codes.items()]


def test_given_text_that_is_no_unicode_in_metadata_when_read_then_it_can_be_sent(shard):
    (item,) = shard(tar(member("a.json", rb'{"x": "\ud800", "y\udc80": [1e999, "\u0000"]}'), member("a.jpg")))
    assert item.metadata["x"] == r"\ud800"
    assert json.dumps(item.metadata).isprintable()
    assert item.metadata[r"y\x80"] == [None, "\0"]


def test_given_metadata_apart_from_their_picture_when_read_then_that_is_told(shard):
    events = shard(tar(member("a.jpg"), member("b.json", b'{"x": 1}'), member("a.json", b"{}"), member("b.jpg")))
    assert set(items(events)) == {"s/a", "s/b"}
    assert failures(events) == [("s/a", "bad_request"), ("s/b", "bad_request")]


def test_given_one_key_twice_when_read_then_another_picture_fails_and_the_same_is_passed_over(shard):
    events = shard(
        tar(member("a.jpg"), member("a.png", b"other"), member("b.jpg"), member("a.jpg", b"third"), member("b.jpg"))
    )
    assert items(events) == {"s/a": JPG, "s/b": JPG}
    assert failures(events) == [("s/a", "bad_request"), ("s/a", "bad_request")]
    assert skipped(events, Skip.DUPLICATE) == 1


def test_given_one_picture_with_the_same_metadata_over_and_over_when_read_then_only_the_first_are_held(shard):
    events = shard(tar(*(member("a.json", b'{"x%d": 1}' % number) for number in range(50)), member("a.jpg")))
    (item,) = [event for event in events if isinstance(event, Item)]
    assert set(item.metadata) == {"path", "name", "x0"}
    assert failures(events) == [("s/a", "bad_request")] * 49


def test_given_a_name_of_a_megabyte_when_read_then_its_member_fails_and_no_message_is_as_long(shard):
    for length in (5_000, 2_000_000):
        events = shard(tar(member("n" * length + ".jpg"), member("a.jpg")))
        assert items(events) == {"s/a": JPG}
        assert [code for _, code in failures(events)] == ["unsupported_media"]
        assert max(len(str(event)) for event in events) < 1_000


def test_given_sparse_members_when_read_then_they_fail_and_the_next_is_found(shard):
    header = bytearray(member("old.jpg", bytes(512), type=tarfile.GNUTYPE_SPARSE)[0].tobuf(tarfile.GNU_FORMAT))
    header[482], header[483:495] = 1, b"77777777777\0"  # one more block of the map follows; 8 GiB unpacked
    old = seal(header) + bytes(504) + b"\1" + bytes(7) + b"x" * 504 + bytes(8) + JPG.ljust(512, b"\0")
    pax = tar(member("new.jpg", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.name": "n.jpg"}), form=FORMATS["pax"])
    events = shard(old + pax + tar(member("a.jpg")))
    assert set(items(events)) == {"s/a"}
    assert failures(events) == [("s/old", "unsupported_media"), ("s/n", "unsupported_media")]


def test_given_a_damaged_header_when_read_then_only_its_member_is_lost(shard):
    data = bytearray(tar(*(member(f"{number}.jpg", JPG * 100) for number in range(5))))
    size = 512 + -(-len(JPG * 100) // 512) * 512
    data[2 * size + 10] ^= 1
    events = shard(bytes(data))
    assert set(items(events)) == {f"s/{number}" for number in (0, 1, 3, 4)}
    assert failures(events) == [(f"s@{2 * size}", "fetch_failed")]


def test_given_a_damaged_long_name_when_read_then_no_picture_gets_a_cut_name(shard):
    names = [f"{'n' * 120}{number}.jpg" for number in range(3)]
    for form in ("gnu", "pax"):
        data = bytearray(tar(*map(member, names), form=FORMATS[form]))
        data[data.index(names[1].encode()) // 512 * 512 - 512] ^= 1  # the header before the name
        events = shard(bytes(data))
        assert set(items(events)) == {f"s/{names[0][:-4]}", f"s/{names[2][:-4]}"}
        assert [code for _, code in failures(events)] == ["fetch_failed", "unsupported_media"]


@pytest.mark.parametrize(
    "record",
    [
        b"99 path=x\n",
        b"0 path=x\n",
        b"-9 path=x\n",
        b"x",
        b"11 path.x\n\n\n",
        b"9 size=-1\n",
        b"9 size=x1\n",
        b"7 path\n",
    ],
)
def test_given_pax_records_that_are_none_when_read_then_their_member_fails_and_the_rest_goes_on(shard, record):
    extended = member("x", record, type=tarfile.XHDTYPE)[0].tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")
    events = shard(extended + tar(member("a.jpg"), member("b.jpg")))
    assert "s/b" in items(events)
    assert ("s/a" in items(events)) + len(failures(events)) >= 1


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE, tarfile.REGTYPE])
@pytest.mark.parametrize("packed", [False, True])
def test_given_a_header_that_claims_more_than_there_is_when_read_then_the_shard_is_incomplete(shard, kind, packed):
    claim = member("x.jpg", b"")[0]
    claim.size, claim.type = 1 << 40, kind
    data = tar(member("a.jpg"))[:1024] + claim.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096
    events = shard(gzip.compress(data) if packed else data)
    assert items(events) == {"s/a": JPG}
    (failure,) = [event for event in events if isinstance(event, Failure)]
    assert failure.whole
    assert "incomplete" in failure.error.message
    assert not failure.error.retryable


def test_given_two_archives_in_one_file_and_garbage_after_the_end_when_read_then_both_are_read_and_it_is_whole(shard):
    events = shard(tar(member("a.jpg")) + tar(member("b.jpg")) + os.urandom(5_000))
    assert items(events) == {"s/a": JPG, "s/b": JPG}
    assert not failures(events)
    # What comes a megabyte after the end is not looked for: of a packed shard that would have no end.
    far = shard(gzip.compress(tar(member("a.jpg")) + bytes(2_000_000) + tar(member("b.jpg"))))
    assert (items(far), failures(far)) == ({"s/a": JPG}, [])


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (b"<html>no such shard</html>" * 100, "unsupported_media", "not a tar"),
        (b"", "fetch_failed", "it is empty"),
        (b"\xfd7zXZ\0" + bytes(600), "unsupported_media", "packed with xz"),
        (b"BZh9" + bytes(600), "unsupported_media", "packed with bzip2"),
        (gzip.compress(b"x" * 5_000), "unsupported_media", "not a tar"),
        (b"\x1f\x8b" + bytes(600), "fetch_failed", "gzip"),
        (gzip.compress(tar(member("a.jpg", os.urandom(9_000))))[:5_000], "fetch_failed", "gzip data end too early"),
    ],
    ids=["html", "empty", "xz", "bzip2", "gzip of something else", "broken gzip", "cut gzip"],
)
def test_given_no_tar_at_all_when_read_then_that_is_said(shard, data, code, text):
    (failure,) = shard(data)
    assert (failure.id, failure.error.code, failure.whole) == ("s", code, True)
    assert text in failure.error.message


def test_given_a_pipe_or_a_missing_shard_among_others_when_read_then_it_fails_and_the_others_are_read(tmp_path):
    os.mkfifo(tmp_path / "1.tar")
    (tmp_path / "2.tar").write_bytes(tar(member("a.jpg")))
    with Seen() as seen:
        events = list(Tars([tmp_path / f"{number}.tar" for number in range(3)], "x").events(seen))
    assert failures(events) == [("0", "fetch_failed"), ("1", "unsupported_media")]
    assert items(events) == {"2/a": JPG}


def test_when_counted_then_headers_are_enough_and_packed_ones_refuse(tmp_path):
    data = tar(*(member(f"{number}.{suffix}") for number in range(9) for suffix in ("jpg", "json")))
    (tmp_path / "a.tar").write_bytes(data)
    assert len(list(Tars([tmp_path / "a.tar", tmp_path / "missing.tar"], "x").count())) == 10
    (tmp_path / "a.tar").write_bytes(gzip.compress(data))
    with pytest.raises(OSError, match="packed"):
        list(Tars([tmp_path / "a.tar"], "x").count())


LENGTH = 1_500
MEMBER = 512 + 1_536
NAMES = [f"{folder}/{number}" for folder in ("a", "b") for number in range(4)]
CONTENT = {f"s/{name}": name.encode() * (LENGTH // 3) for name in NAMES}
WHOLE = tar(*(member(f"{name}.jpg", CONTENT[f"s/{name}"]) for name in NAMES))


@given(cut=st.integers(0, len(WHOLE)), packed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_given_a_shard_cut_anywhere_when_read_then_its_whole_members_are_kept_and_it_is_incomplete(
    tmp_path_factory, cut, packed
):
    data = WHOLE[:cut]
    events = read(tmp_path_factory.mktemp("cut") / "s.tar", gzip.compress(data) if packed else data)
    # A member's padding is none of its content.
    whole = (cut + MEMBER - 512 - LENGTH) // MEMBER
    assert list(items(events).items()) == list(CONTENT.items())[:whole]
    assert any(event.whole for event in events if isinstance(event, Failure)) == (cut <= len(NAMES) * MEMBER)


@given(flips=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_given_damage_anywhere_when_read_then_it_costs_only_the_members_it_is_in(tmp_path_factory, flips):
    data = bytearray(WHOLE)
    for at, bits in flips:
        data[at] ^= bits
    events = read(tmp_path_factory.mktemp("flip") / "s.tar", bytes(data))
    if data[257:262] != b"ustar" and data[:512] != WHOLE[:512]:  # nothing is left that says what the file is
        return
    hit = {at // MEMBER for at, _ in flips}
    untouched = {f"s/{name}": CONTENT[f"s/{name}"] for number, name in enumerate(NAMES) if number not in hit}
    assert untouched.items() <= items(events).items()


@given(data=st.binary(max_size=3_000), at=st.integers(0, len(WHOLE)), packed=st.booleans(), cut=st.integers(0, 500))
@settings(max_examples=150, deadline=None)
def test_given_any_bytes_when_read_then_there_are_events_and_nothing_is_raised(tmp_path_factory, data, at, packed, cut):
    whole = WHOLE[:at] + data + WHOLE[at:]
    if packed:
        whole = gzip.compress(whole)
        whole = whole[: len(whole) - cut] if cut % 2 else whole[:cut] + data + whole[cut:]
    events = read(tmp_path_factory.mktemp("any") / "s.tar", whole)
    assert all(isinstance(event, Item | Failure | Skip) for event in events)
