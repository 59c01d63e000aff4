"""``frames``: pictures out of videos that are made here."""

from __future__ import annotations

import io
import time
from fractions import Fraction
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from clipfleet.operators import ImageLimits, Place, frames
from clipfleet.operators import video as module
from clipfleet.operators.fetch import Fetcher
from clipfleet.operators.operator import Item, current
from clipfleet.schemas.errors import ErrorCode, RequestFailed

av = pytest.importorskip("av")


def video(container="mp4", codec="mpeg4", seconds=4, rate=10, size=(64, 48)):
    """One grey a second, getting lighter: 20, 60, 100 ..."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as made:
        stream = made.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.time_base = Fraction(1, rate)
        for number in range(seconds * rate):
            pixels = np.full((size[1], size[0], 3), 20 + 40 * (number // rate), np.uint8)
            pixels[: size[1] // 4] = (250, 10, 10)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            made.mux(stream.encode(frame))
        made.mux(stream.encode())
    return out.getvalue()


@pytest.fixture(scope="module")
def clip():
    return video()


def failure(data, operator=None):
    with pytest.raises(RequestFailed) as failed:
        list((operator or frames())(data))
    return failed.value


def test_given_a_video_then_there_is_a_picture_a_second(clip):
    found = list(frames()(clip))
    assert [seconds for _, seconds in found] == pytest.approx([0, 1, 2, 3], abs=1e-6)
    for number, (pixels, _) in enumerate(found):
        assert (pixels.shape, pixels.dtype) == ((48, 64, 3), np.uint8)
        assert abs(int(pixels[30, 30, 0]) - (20 + 40 * number)) < 12
        # Red is above: neither upside down nor with swapped channels.
        assert pixels[5, 30, 0] > 200 > pixels[5, 30, 2] + 100


@pytest.mark.parametrize(
    ("every", "limit", "expected"),
    [(0, 3, [0, 0.1, 0.2]), (0.25, None, [0, 0.3, 0.5, 0.8, 1.0]), (1.5, None, [0, 1.5, 3.0]), (9, None, [0])],
)
def test_given_a_distance_then_the_first_frame_of_each_step_is_taken(clip, every, limit, expected):
    found = [seconds for _, seconds in frames(every, limit)(clip)]
    assert found[: len(expected)] == pytest.approx(expected, abs=1e-6)
    assert len(found) == {0: 3, 0.25: 16, 1.5: 3, 9: 1}[every]


@pytest.mark.parametrize(
    ("container", "codec"), [("matroska", "mpeg4"), ("avi", "mpeg4"), ("mpegts", "mpeg2video"), ("mov", "mpeg4")]
)
def test_given_other_containers_then_their_content_tells_them(container, codec):
    rate = 25 if codec == "mpeg2video" else 10
    assert len(list(frames()(video(container, codec, seconds=2, rate=rate)))) == 2


def test_given_a_video_then_it_is_read_only_as_far_as_it_is_asked_for(monkeypatch):
    taken = []

    class Counted(io.BytesIO):
        def read(self, size=-1):
            data = super().read(size)
            taken.append(len(data))
            return data

    made = video("matroska", "mjpeg", size=(640, 480), seconds=5)
    monkeypatch.setattr(module, "io", SimpleNamespace(BytesIO=Counted))
    reading = frames(0)(made)
    assert len(list(islice(reading, 2))) == 2
    early = sum(taken)
    assert early < len(made) / 3
    reading.close()
    assert sum(taken) == early


def test_given_a_turned_video_then_its_pictures_are_upright():
    class Turned:
        rotation = 90

        def to_ndarray(self, **_):
            pixels = np.zeros((2, 3, 3), np.uint8)
            pixels[0, 2] = 255  # upper right, which a quarter turn to the left brings to the upper left
            return pixels

    upright = module._upright(Turned())
    assert upright.shape == (3, 2, 3)
    assert upright[0, 0].tolist() == [255] * 3


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.EMPTY_INPUT),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", ErrorCode.UNSUPPORTED_MEDIA),
        (b"ffconcat version 1.0\nfile '/etc/passwd'\n", ErrorCode.UNSUPPORTED_MEDIA),
        (b"GIF89a" + bytes(300), ErrorCode.UNSUPPORTED_MEDIA),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), ErrorCode.UNSUPPORTED_MEDIA),
        (b"\x00\x00\x00\x20ftypisom" + bytes(100), ErrorCode.CORRUPT_IMAGE),
        (b"\x1a\x45\xdf\xa3" + bytes(100), ErrorCode.CORRUPT_IMAGE),
        (b"RIFF\x10\x00\x00\x00AVI " + bytes(100), ErrorCode.CORRUPT_IMAGE),
    ],
    ids=["empty", "playlist", "concat", "gif", "png", "mp4", "webm", "avi"],
)
def test_given_what_is_no_video_then_it_fails_with_its_code(data, code):
    assert failure(data).code is code


def test_given_a_cut_video_then_it_is_corrupt_or_gives_what_there_is(clip):
    # The index of an MP4 is at its end.
    assert failure(clip[: len(clip) // 2]).code is ErrorCode.CORRUPT_IMAGE
    webm = video("matroska")
    assert 1 <= len(list(frames(0)(webm[: len(webm) * 3 // 4]))) < 40


def test_given_sound_alone_then_there_is_no_video_in_it():
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as made:
        stream = made.add_stream("aac", rate=8000, layout="mono")
        for number in range(4):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, number * 1024
            made.mux(stream.encode(frame))
        made.mux(stream.encode())
    assert failure(out.getvalue()).code is ErrorCode.UNSUPPORTED_MEDIA


def test_given_a_coding_that_nobody_knows_then_it_is_unsupported():
    known = video("avi", seconds=1)
    assert b"FMP4" in known
    assert failure(known.replace(b"FMP4", b"zzzz")).code is ErrorCode.UNSUPPORTED_MEDIA


def test_given_more_pixels_than_are_decoded_then_it_fails_before_they_are(clip):
    class Services:
        fetcher = Fetcher()
        limits = ImageLimits(max_pixels=64 * 48 - 1)

    opened = frames().open(Place(Services()))
    assert failure(clip, opened).code is ErrorCode.TOO_MANY_PIXELS


def test_given_a_request_without_time_then_decoding_ends(clip):
    try:
        current.item = Item("r", time.monotonic() + 3600)
        reading = frames(0)(clip)
        next(reading)
        current.item = Item("r", time.monotonic() - 1)
        late = frames(0)(clip)
    finally:
        current.item = None
    # Its own deadline counts, not that of whoever runs in this thread by then.
    assert len(list(reading)) == 39
    with pytest.raises(RequestFailed) as failed:
        next(late)
    assert failed.value.code is ErrorCode.EXPIRED


def test_given_no_time_left_between_two_pictures_that_are_far_apart_then_the_frames_between_are_not_decoded(
    clip, monkeypatch
):
    reading = frames(3.5)(clip)
    next(reading)
    now = time.monotonic()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now + 7200))
    with pytest.raises(RequestFailed) as failed:
        next(reading)
    assert failed.value.code is ErrorCode.EXPIRED


@pytest.mark.parametrize("options", [{"every_s": -1}, {"every_s": float("nan")}, {"limit": 0}], ids=str)
def test_given_an_option_that_cannot_be_then_it_is_refused_when_it_is_written(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        frames(**options)
