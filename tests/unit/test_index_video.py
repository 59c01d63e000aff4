"""Frames of videos, as pictures of their own."""

from __future__ import annotations

import importlib.util
import io
import os
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from clipfleet.index.manifest import signature
from clipfleet.index.part import Part, part_of
from clipfleet.index.sending import Sending
from clipfleet.index.sources import Failure, Item, Seen, SourceError, open_sources

if not os.environ.get("CI"):
    pytest.importorskip("av")


def video(seconds=4, rate=10, size=(64, 48), container="mp4"):
    """One grey a second, getting lighter: 20, 60, 100 ..."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=container) as made:
        stream = made.add_stream("mpeg4", rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.time_base = Fraction(1, rate)
        for number in range(seconds * rate):
            frame = av.VideoFrame.from_ndarray(
                np.full((size[1], size[0], 3), 20 + 40 * (number // rate), np.uint8), format="rgb24"
            )
            frame.pts = number
            made.mux(stream.encode(frame))
        made.mux(stream.encode())
    return out.getvalue()


def events(*sources):
    with Seen() as seen:
        return [event for source in sources for event in source.events(seen)]


def items(found):
    return [event for event in found if isinstance(event, Item)]


def failures(found):
    return [(event.id, str(event.error.code), event.whole) for event in found if isinstance(event, Failure)]


@pytest.mark.parametrize(
    ("every_s", "times"),
    [(1, ["0.000", "1.000", "2.000", "3.000"]), (1.5, ["0.000", "1.500", "3.000"]), (60, ["0.000"])],
)
def test_given_a_video_when_read_then_there_is_a_picture_each_so_many_seconds(tmp_path, every_s, times):
    (tmp_path / "clip.mp4").write_bytes(video())
    (source,) = open_sources([tmp_path / "clip.mp4"], every_s=every_s)
    found = items(events(source))
    assert [item.id for item in found] == [f"clip.mp4#t={at}" for at in times]
    for item in found:
        at = item.metadata["seconds"]
        assert item.metadata == {"path": "clip.mp4", "name": "clip.mp4", "seconds": at}
        picture = Image.open(io.BytesIO(Sending().request(item).inputs["image"]))
        assert (picture.format, picture.size) == ("JPEG", (64, 48))
        assert abs(np.asarray(picture)[24, 32].mean() - (20 + 40 * int(at))) < 12
    assert f"a frame each {every_s:g} s" in source.about


def test_given_a_pattern_when_read_then_ids_are_as_of_pictures_and_no_video_is_read_by_two_hosts(tmp_path):
    for name in ("a/1.mp4", "b/1.mp4", "b/2.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(video(seconds=2))
    sources = open_sources([str(tmp_path / "**/*.mp4")])
    ids = [item.id for item in items(events(*sources))]
    assert ids == [f"{name}#t={at}.000" for name in ("a/1.mp4", "b/1.mp4", "b/2.mp4") for at in (0, 1)]
    parts = [[item.id for item in items(events(*part_of(sources, Part(number, 2))))] for number in (1, 2)]
    assert sorted(parts[0] + parts[1]) == ids
    assert [len(part) for part in parts] == [4, 2]


def test_given_the_same_video_again_when_looked_at_then_only_what_has_changed_has_another_signature(tmp_path):
    def signatures():
        return [signature(item) for item in items(events(*open_sources([tmp_path / "clip.mkv"])))]

    (tmp_path / "clip.mkv").write_bytes(video(seconds=3, container="matroska"))
    before = signatures()
    assert signatures() == before
    (tmp_path / "clip.mkv").write_bytes(video(seconds=3, size=(64, 64), container="matroska"))
    assert not set(signatures()) & set(before)


def test_given_what_is_no_whole_video_when_read_then_it_fails_and_the_others_go_on(tmp_path):
    cut = video(seconds=5, container="matroska")
    for name, data in {
        "1.mp4": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "2.mkv": cut[: len(cut) // 2],
        "3.mp4": b"",
        "5.mp4": video(seconds=1),
    }.items():
        (tmp_path / name).write_bytes(data)
    found = events(*open_sources([tmp_path / f"{n}" for n in ("1.mp4", "2.mkv", "3.mp4", "{4,5}.mp4")]))
    ids = [item.id for item in items(found)]
    assert ids[-1] == "5.mp4#t=0.000"
    assert "2.mkv#t=0.000" in ids
    assert [each for each in failures(found) if each[0] != "2.mkv"] == [
        ("1.mp4", "unsupported_media", True),
        ("3.mp4", "empty_input", True),
        ("4.mp4", "fetch_failed", True),
    ]


def test_given_a_video_in_a_store_when_read_then_it_is_as_one_here():
    if not os.environ.get("CI"):
        pytest.importorskip("fsspec")
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe("/v/clip.mp4", video(seconds=2))
    try:
        found = items(events(*open_sources(["memory://v/*.mp4"])))
    finally:
        fs.store.clear()
    assert [item.id for item in found] == ["clip.mp4#t=0.000", "clip.mp4#t=1.000"]


def test_given_no_such_video_or_no_pyav_when_opened_then_it_says_so(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"none\.mp4"):
        open_sources([tmp_path / "none.mp4"])
    with pytest.raises(FileNotFoundError):
        open_sources([tmp_path / "*.mp4"])
    (tmp_path / "a.mp4").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SourceError, match=r"clipfleet\[video\]"):
        open_sources([tmp_path / "a.mp4"])
