"""Paths lead to regular files below a root, and to nothing else."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.operators import Fetcher, PathRoots
from clipfleet.schemas.errors import RequestFailed


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    (root / "2024" / "may").mkdir(parents=True)
    (root / "a.jpg").write_bytes(b"a")
    (root / "2024" / "may" / "b c é.jpg").write_bytes(b"b")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "o.jpg").write_bytes(b"o")
    return tmp_path


def failure_of(roots, path):
    with pytest.raises(RequestFailed) as failure:
        roots.read(path)
    return failure.value


@pytest.mark.parametrize("path", ["photos:a.jpg", "photos/a.jpg", "a.jpg"])
def test_given_one_root_when_read_by_any_spelling_then_it_is_the_same_file(tree, path):
    assert PathRoots({"photos": tree / "root"}).read(path) == b"a"


def test_given_two_roots_then_the_name_is_needed(tree):
    roots = PathRoots({"photos": tree / "root", "more": str(tree / "other")})
    assert roots.read("photos:2024/may/b c é.jpg") == b"b"
    assert roots.read("more/o.jpg") == b"o"
    assert failure_of(roots, "a.jpg").code == "fetch_forbidden"


def test_given_a_folder_with_the_name_of_the_root_then_the_colon_tells_them_apart(tree):
    (tree / "root" / "photos").mkdir()
    (tree / "root" / "photos" / "a.jpg").write_bytes(b"inner")
    roots = PathRoots({"photos": tree / "root"})
    assert roots.read("photos/a.jpg") == b"a"
    assert roots.read("photos:photos/a.jpg") == b"inner"


def test_given_a_colon_in_a_file_name_then_it_is_only_a_root_if_one_has_that_name(tree):
    (tree / "root" / "10:30.jpg").write_bytes(b"time")
    assert PathRoots({"photos": tree / "root"}).read("10:30.jpg") == b"time"


def _links(tree):
    root = tree / "root"
    (root / "out.jpg").symlink_to(tree / "secret.txt")
    (root / "in.jpg").symlink_to(root / "a.jpg")
    (root / "up").symlink_to(tree)
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))


@pytest.mark.parametrize(
    "path",
    [
        "missing.jpg",
        "2024",
        "2024/may",
        "2024/",
        "/a.jpg",
        "./a.jpg",
        "../secret.txt",
        "2024/../../secret.txt",
        "2024//may",
        "a.jpg/x",
        "out.jpg",
        "in.jpg",
        "up/secret.txt",
        "fifo",
        "socket",
        "photos:/etc/passwd",
        "photos:",
        "photos/",
        "nobody:a.jpg",
        "/etc/passwd",
        "~/a.jpg",
        "a.jpg\x00.png",
        "a\ud800.jpg",
        "x" * 300,
        "y/" * 3_000 + "z",
        "..",
        ".",
        "/",
    ],
)
def test_given_what_is_forbidden_or_missing_then_both_look_alike(tree, path):
    _links(tree)
    roots = PathRoots({"photos": tree / "root"})
    failure, missing = failure_of(roots, path), failure_of(roots, "no-such-file")
    assert (failure.code, failure.message, failure.retryable) == (missing.code, missing.message, False)
    assert failure.code == "fetch_forbidden"
    assert failure.__cause__ is None


def test_given_no_permission_then_it_looks_missing(tree, monkeypatch):
    roots = PathRoots({"photos": tree / "root"})
    monkeypatch.setattr("clipfleet.operators.paths.os.read", _raising(errno.EACCES))
    assert failure_of(roots, "a.jpg").code == "fetch_forbidden"


def _raising(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_given_a_machine_in_trouble_then_a_retry_may_help(tree, monkeypatch, number):
    roots = PathRoots({"photos": tree / "root"})
    monkeypatch.setattr("clipfleet.operators.paths.os.read", _raising(number))
    failure = failure_of(roots, "a.jpg")
    assert failure.code == "fetch_failed"
    assert failure.retryable


def test_given_a_device_then_it_is_not_even_opened(tree, monkeypatch):
    opened = []
    true_open = os.open

    def watched(path, flags, *args, **kwargs):
        opened.append(path)
        return true_open(path, flags, *args, **kwargs)

    monkeypatch.setattr("clipfleet.operators.paths.os.open", watched)
    assert failure_of(PathRoots({"dev": "/dev"}), "null").code == "fetch_forbidden"
    assert "null" not in opened


def test_given_a_file_that_turns_into_a_fifo_after_the_check_then_nothing_blocks(tree, monkeypatch):
    path = tree / "root" / "a.jpg"
    true_stat = os.stat

    def swapped(name, **kwargs):
        found = true_stat(name, **kwargs)
        if name == "a.jpg":
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr("clipfleet.operators.paths.os.stat", swapped)
    assert failure_of(PathRoots({"photos": tree / "root"}), "a.jpg").code == "fetch_forbidden"


def test_given_a_folder_swapped_for_a_link_between_two_components_then_it_does_not_lead_out(tree, monkeypatch):
    true_open = os.open
    swaps = []

    def swapped(name, flags, *args, **kwargs):
        fd = true_open(name, flags, *args, **kwargs)
        if name == "2024":
            (tree / "root" / "2024").rename(tree / "root" / "gone")
            (tree / "root" / "2024").symlink_to(tree)
            swaps.append(name)
        return fd

    (tree / "may").mkdir()
    (tree / "may" / "x.jpg").write_bytes(b"secret")
    (tree / "root" / "2024" / "may" / "x.jpg").write_bytes(b"inside")
    monkeypatch.setattr("clipfleet.operators.paths.os.open", swapped)
    assert PathRoots({"photos": tree / "root"}).read("2024/may/x.jpg") == b"inside"
    assert swaps == ["2024"]


def test_given_a_file_larger_than_allowed_then_it_is_too_large(tree):
    (tree / "root" / "big").write_bytes(b"x" * 1001)
    roots = PathRoots({"photos": tree / "root"}, max_bytes=1000)
    assert failure_of(roots, "big").code == "too_large"
    (tree / "root" / "big").write_bytes(b"x" * 1000)
    assert len(roots.read("big")) == 1000


def test_given_files_without_a_size_then_they_are_read_to_their_end():
    assert b"MemTotal" in PathRoots({"proc": "/proc"}).read("meminfo")


def test_given_an_empty_file_then_it_is_read_and_judged_by_the_decoder(tree):
    (tree / "root" / "empty").write_bytes(b"")
    assert PathRoots({"photos": tree / "root"}).read("empty") == b""


@pytest.mark.parametrize(
    "roots", [{"": "."}, {"a/b": "."}, {"a:b": "."}, {"a": "/no/such/folder"}, {"a": "/etc/passwd"}]
)
def test_given_roots_that_make_no_sense_then_they_are_refused(roots):
    with pytest.raises(ValueError, match="root"):
        PathRoots(roots)


def test_given_a_root_that_is_a_link_then_the_operator_meant_it(tree):
    (tree / "link").symlink_to(tree / "root")
    assert PathRoots({"photos": tree / "link"}).read("a.jpg") == b"a"


def test_given_many_reads_good_and_bad_then_no_descriptor_is_left_open(tree):
    _links(tree)
    roots = PathRoots({"photos": tree / "root"})
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        roots.read("2024/may/b c é.jpg")
        for path in ("missing", "2024/missing", "2024", "out.jpg", "fifo", "a.jpg/x", "2024/may/x/y"):
            failure_of(roots, path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@given(st.text(st.sampled_from("./:abc photos\\\x00é"), max_size=20))
@settings(max_examples=200, deadline=None)
def test_given_any_text_then_no_byte_from_outside_comes_back(tmp_path_factory, path):
    base = tmp_path_factory.getbasetemp() / "fuzz"
    if not base.exists():
        (base / "root").mkdir(parents=True)
        (base / "a").write_bytes(b"secret")
        (base / "root" / "b").write_bytes(b"inside")
    try:
        data = PathRoots({"photos": base / "root"}).read(path)
    except RequestFailed as failure:
        data, code = b"inside", failure.code
    else:
        code = "fetch_forbidden"
    assert data == b"inside"
    assert code in {"fetch_forbidden", "bad_request"}


def test_given_each_way_to_send_a_picture_then_its_bytes_come_back(tree):
    fetcher = Fetcher(PathRoots({"photos": tree / "root"}))
    view = memoryview(b"xyz")
    assert fetcher.fetch(b"abc") == b"abc"
    assert fetcher.fetch(view) is view
    assert fetcher.fetch({"path": "a.jpg"}) == b"a"


@pytest.mark.parametrize(
    ("picture", "code"),
    [
        ({"url": "https://example.com/a.jpg"}, "fetch_forbidden"),
        ({"path": "a.jpg"}, "fetch_forbidden"),
        ({"path": ""}, "bad_request"),
        ({"path": 1}, "bad_request"),
        ({"url": None}, "bad_request"),
        ({"path": "a", "url": "b"}, "bad_request"),
        ({}, "bad_request"),
        ({"file": "a"}, "bad_request"),
        ("a.jpg", "bad_request"),
        (None, "bad_request"),
        (7, "bad_request"),
        ([1], "bad_request"),
    ],
)
def test_given_a_worker_without_roots_and_urls_then_only_bytes_are_taken(picture, code):
    with pytest.raises(RequestFailed) as failure:
        Fetcher().fetch(picture)
    assert failure.value.code == code
