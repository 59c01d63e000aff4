from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clipfleet.index import printable, walk

if TYPE_CHECKING:
    from pathlib import Path


def ids(*sources: Path) -> list[str]:
    return sorted(found.id for found in walk(sources) if found.error is None)


def errors(*sources: Path) -> dict[str, str]:
    return {found.id: str(found.error.code) for found in walk(sources) if found.error is not None}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for name in ("a.png", "B.JPG", "deep/er/c.webp", "deep/notes.txt", ".hidden.png", ".git/d.png"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def test_given_a_tree_when_walked_then_its_pictures_are_found_with_relative_ids(pictures):
    assert ids(pictures) == ["B.JPG", "a.png", "deep/er/c.webp"]
    assert not errors(pictures)


def test_given_a_file_as_source_when_walked_then_it_is_taken_whatever_its_name(pictures):
    assert ids(pictures / "deep" / "notes.txt") == ["notes.txt"]


def test_given_a_loop_of_links_when_walked_then_it_ends_and_finds_each_once(pictures):
    (pictures / "deep" / "loop").symlink_to(pictures)
    (pictures / "twice").symlink_to(pictures / "deep" / "er")
    assert len(ids(pictures)) == 3


def test_given_a_link_to_a_file_when_walked_then_it_is_followed_and_a_broken_one_is_reported(pictures):
    (pictures / "link.png").symlink_to(pictures / "a.png")
    (pictures / "broken.png").symlink_to(pictures / "nothing")
    assert "link.png" in ids(pictures)
    assert errors(pictures) == {"broken.png": "fetch_failed"}


def test_given_a_pipe_with_a_pictures_name_when_walked_then_it_is_passed_over(pictures):
    os.mkfifo(pictures / "pipe.png")
    assert "pipe.png" not in ids(pictures)
    assert not errors(pictures)


def test_given_a_name_outside_utf8_when_walked_then_its_id_is_valid_utf8(pictures):
    (pictures / os.fsdecode(b"caf\xe9.png")).write_bytes(b"x")
    (pictures / "größe 猫.png").write_bytes(b"x")
    found = ids(pictures)
    assert r"caf\xe9.png" in found
    assert "größe 猫.png" in found
    assert all(each.encode() for each in found)


def test_given_a_folder_that_cannot_be_read_when_walked_then_it_is_reported_and_the_rest_goes_on(pictures, monkeypatch):
    scandir = os.scandir

    def refuse(folder):
        if str(folder).endswith("/er"):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read everything: a mode would not do
    assert ids(pictures) == ["B.JPG", "a.png"]
    assert errors(pictures) == {"deep/er": "fetch_failed"}


def test_given_two_sources_with_one_id_when_walked_then_the_second_is_an_error(pictures, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.png").write_bytes(b"y")
    (other / "z.png").write_bytes(b"y")
    assert ids(pictures, other) == ["B.JPG", "a.png", "deep/er/c.webp", "z.png"]
    assert errors(pictures, other) == {"a.png": "bad_request"}


def test_given_a_source_that_is_not_there_when_walked_then_it_raises_before_anything_is_yielded(pictures):
    with pytest.raises(FileNotFoundError):
        next(walk([pictures, pictures / "nothing"]))


def test_given_many_files_when_the_first_is_asked_for_then_no_folder_was_listed_whole(tmp_path, monkeypatch):
    for number in range(200):
        (tmp_path / f"{number}.png").touch()
    taken = 0
    scandir = os.scandir

    class Counting:
        def __init__(self, folder):
            self._scan = scandir(folder)

        def close(self):
            self._scan.close()

        def __iter__(self):
            return self

        def __next__(self):
            nonlocal taken
            taken += 1
            return next(self._scan)

    monkeypatch.setattr(os, "scandir", Counting)
    walking = walk([tmp_path])
    next(walking)
    assert taken == 1
    walking.close()


def test_given_any_name_when_made_printable_then_it_can_be_written():
    assert printable(os.fsdecode(b"\xff\xfea")) == r"\xff\xfea"
    assert printable("plain ö") == "plain ö"


def test_given_one_source_twice_when_walked_then_it_is_walked_once(pictures, tmp_path):
    (tmp_path / "link").symlink_to(pictures)
    assert ids(pictures, pictures, pictures / "deep" / "..", tmp_path / "link") == ["B.JPG", "a.png", "deep/er/c.webp"]
    assert not errors(pictures, pictures, tmp_path / "link")


def test_given_files_that_are_no_pictures_when_walked_then_they_are_told(pictures):
    skipped = []
    list(walk([pictures], on_skipped=skipped.append))
    assert skipped == [pictures / "deep" / "notes.txt"]
