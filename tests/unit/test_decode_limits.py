"""Nothing is decoded that costs more than it may, and memory has a bound whatever arrives."""

from __future__ import annotations

import io
import json
import logging
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from pathlib import Path

import pytest
from PIL import Image

from clipfleet.operators import ImageLimits, decode_image, silence_pillow
from clipfleet.operators._avif import read_avif
from clipfleet.schemas.errors import RequestFailed
from support.pictures import save

HERE = Path(__file__).resolve().parent


def code_of(data, limits=None, **options):
    with pytest.raises(RequestFailed) as failure:
        decode_image(data, limits, **options)
    return failure.value.code


def _png(data, width, height):
    struct.pack_into(">II", data, 16, width, height)
    struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))


def _jpeg2000(data, width, height):
    struct.pack_into(">II", data, data.index(b"ihdr") + 4, height, width)
    struct.pack_into(">II", data, data.index(b"\xff\x51") + 6, width, height)


def _tiff(data, width, height):
    for tag, value in ((256, width), (257, height)):
        struct.pack_into("<I", data, data.index(struct.pack("<HHI", tag, 4, 1)) + 8, value)


def _gif(data, width, height):
    struct.pack_into("<HH", data, 6, width, height)
    struct.pack_into("<HH", data, data.index(b",\x00\x00\x00\x00") + 5, width, height)


_CLAIMS = {
    "AVIF": lambda data, w, h: struct.pack_into(">II", data, data.index(b"ispe") + 8, w, h),
    "BMP": lambda data, w, h: struct.pack_into("<ii", data, 18, w, h),
    "GIF": _gif,
    "JPEG": lambda data, w, h: struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, h, w),
    "JPEG2000": _jpeg2000,
    "PNG": _png,
    "TIFF": _tiff,
    "WEBP": lambda data, w, h: struct.pack_into("<I", data, 21, (w - 1) | (h - 1) << 14),
}


def claiming(kind, width, height):
    """A small file whose header claims ``width`` by ``height``."""
    if kind == "PPM":
        return b"P6 %d %d 255\n" % (width, height) + bytes(100)
    data = bytearray(save(Image.new("RGB", (16, 16)), kind, **({"lossless": True} if kind == "WEBP" else {})))
    _CLAIMS[kind](data, width, height)
    return bytes(data)


@pytest.mark.parametrize("kind", ["AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"])
def test_given_a_header_that_claims_too_much_then_it_is_refused_before_decoding(kind):
    assert code_of(claiming(kind, 16_000, 16_000)) == "too_many_pixels"


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
def test_given_a_sliver_then_it_is_bad_shape(kind):
    assert code_of(claiming(kind, 16_000, 8)) == "bad_shape"
    assert code_of(claiming(kind, 1, 16)) == "bad_shape"


def test_given_an_icon_with_a_bomb_inside_then_the_bombs_own_header_counts():
    for bomb in (claiming("PNG", 16_000, 16_000), claiming("BMP", 16_000, 32_000)[14:]):
        icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(bomb), 22) + bomb
        assert code_of(icon) == "too_many_pixels"


def test_given_an_avif_whose_frame_is_larger_than_it_says_then_the_frame_counts():
    data = bytearray(save(Image.new("RGB", (2000, 1500)), "AVIF"))
    struct.pack_into(">II", data, data.index(b"ispe") + 8, 64, 48)
    assert decode_image(bytes(data)).size == (64, 48)
    assert code_of(bytes(data), ImageLimits(max_pixels=2 * 2_999_999)) == "too_many_pixels"
    assert decode_image(bytes(data), ImageLimits(max_pixels=2 * 3_000_000)).size == (64, 48)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(16, 16), (333, 77), (1000, 600)])
def test_given_ordinary_avifs_then_the_frame_is_the_size_that_they_say(mode, size):
    assert read_avif(save(Image.new(mode, size), "AVIF")).frame == size[0] * size[1]


def test_given_an_avif_sequence_or_a_cut_one_then_the_frame_is_unknown():
    data = save(Image.new("RGB", (64, 64)), "AVIF", save_all=True, append_images=[Image.new("RGB", (64, 64), "red")])
    assert read_avif(data).frame is None
    still = save(Image.new("RGB", (64, 64)), "AVIF")
    assert {read_avif(still[:cut]).frame for cut in range(len(still))} <= {None, 64 * 64}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (ImageLimits(max_pixels=16 * 16), None),
        (ImageLimits(max_pixels=16 * 16 - 1), "too_many_pixels"),
        (ImageLimits(min_side=16), None),
        (ImageLimits(min_side=17), "bad_shape"),
        (ImageLimits(max_bytes=10_000), None),
        (ImageLimits(max_bytes=10), "too_large"),
    ],
)
def test_given_limits_then_each_is_exact(limits, expected):
    data = save(Image.new("RGB", (16, 16)), "PNG")
    if expected is None:
        assert decode_image(data, limits).size == (16, 16)
    else:
        assert code_of(data, limits) == expected


def test_given_an_aspect_ratio_at_the_limit_then_it_passes_and_one_more_does_not():
    limits = ImageLimits(max_aspect=4)
    assert decode_image(save(Image.new("RGB", (40, 10)), "PNG"), limits).size == (40, 10)
    assert code_of(save(Image.new("RGB", (41, 10)), "PNG"), limits) == "bad_shape"


@pytest.mark.parametrize(
    "wrong",
    [{"max_pixels": 0}, {"max_pixels": 100_000_000}, {"max_aspect": 0.5}, {"min_side": 0}, {"max_bytes": 0}],
)
def test_given_limits_that_make_no_sense_then_they_are_refused(wrong):
    with pytest.raises(ValueError, match=r"limit|max_aspect|max_pixels"):
        ImageLimits(**wrong)


def test_given_a_coding_that_pillow_decodes_in_python_then_its_own_limit_applies():
    limits = ImageLimits(slow_pixels=100)
    assert code_of(b"P3 16 16 255\n" + b"1 2 3 " * 256, limits) == "too_many_pixels"
    assert decode_image(b"P3 16 16 255\n" + b"1 2 3 " * 256).getpixel((3, 3)) == (1, 2, 3)
    assert decode_image(b"P6 16 16 255\n" + b"\x01\x02\x03" * 256, limits).getpixel((3, 3)) == (1, 2, 3)


def test_given_a_jpeg_of_thousands_of_scans_then_it_is_refused():
    data = save(Image.new("RGB", (3000, 3000)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    assert decode_image(data, target=32).mode == "RGB"
    assert code_of(data[:-2] + data[last:-2] * 5_000 + b"\xff\xd9") == "too_many_pixels"


def test_given_a_jpeg_header_of_a_million_segments_then_it_is_refused_at_once():
    jpeg = save(Image.new("RGB", (16, 16)), "JPEG")
    start = time.process_time()
    for filler in (b"\xff\xfe\x00\x02" * 1_000_000, b"\xff" * 4_000_000, b"\xff\x01" * 2_000_000):
        assert code_of(jpeg[:2] + filler + jpeg[2:]) == "corrupt_image"
    assert time.process_time() - start < 2


def test_given_a_png_of_a_million_chunks_then_it_is_refused_at_once():
    png = save(Image.new("RGB", (16, 16)), "PNG")
    chunk = b"\x00\x00\x00\x00tEXt" + struct.pack(">I", zlib.crc32(b"tEXt"))
    start = time.process_time()
    assert code_of(png[:33] + chunk * 1_000_000 + png[33:]) == "corrupt_image"
    assert time.process_time() - start < 2


def tiff_with(*tags):
    body = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\x00\x08\x00\x00\x00" + struct.pack("<H", len(tags)) + body + bytes(4) + bytes(4096)


BASE = [(256, 4, 1, 16), (257, 4, 1, 16), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)]


@pytest.mark.parametrize(
    "extra",
    [
        [(40_000 + index, 7, 3_000, 8) for index in range(100)],
        [(322, 4, 1, 40_000), (323, 4, 1, 40_000), (324, 4, 1, 200), (325, 4, 1, 100)],
        [(273, 4, 1_000_000, 8), (278, 4, 1, 1), (279, 4, 1, 100)],
    ],
    ids=["overlapping values", "a tile of 1.6 gigapixels", "a million strips"],
)
def test_given_a_tiff_that_claims_what_no_picture_needs_then_it_is_refused(extra):
    assert code_of(tiff_with(*BASE, *extra)) == "corrupt_image"


def test_given_pillows_warnings_as_errors_in_many_threads_then_none_leaks_and_no_filter_is_lost():
    plain = [(273, 4, 1, 200), (278, 4, 1, 16), (279, 4, 1, 256), (40_000, 7, 0x7FFFFFFF, 8)]
    odd = tiff_with(*(tag for tag in BASE if tag[0] != 259), (259, 3, 1, 1), *plain)
    with pytest.warns(UserWarning, match="larger than file"), Image.open(io.BytesIO(odd)):
        pass
    failures = []

    def decode():
        try:
            for _ in range(20):
                decode_image(odd)
        except BaseException as problem:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(problem)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with pytest.warns(UserWarning, match="from elsewhere"):
        warnings.warn("from elsewhere", stacklevel=1)


def test_given_a_tiff_that_pillow_complains_about_then_no_log_is_written(caplog):
    samples = [tag for tag in BASE if tag[0] != 277]
    caplog.set_level(logging.DEBUG)
    assert code_of(tiff_with(*samples, (277, 4, 1, 18_761))) == "corrupt_image"
    assert caplog.records == []


def test_given_many_decodes_then_the_filter_is_there_once():
    silence_pillow()
    before = len(warnings.filters)
    for _ in range(3):
        silence_pillow()
    assert len(warnings.filters) == before


def test_given_a_tiff_that_libtiff_complains_about_then_nothing_is_printed():
    """libtiff writes to the descriptor, past Python, so it takes another process to see it."""
    good = save(Image.effect_noise((64, 64), 90), "TIFF", compression="tiff_lzw")
    script = (
        "import sys; from clipfleet.operators import decode_image; from clipfleet.schemas.errors import RequestFailed\n"
        "try: decode_image(sys.stdin.buffer.read())\nexcept RequestFailed as problem: print(problem.code)"
    )
    at = len(good) // 2
    run = subprocess.run(
        [sys.executable, "-c", script], input=good[:at] + bytes(64) + good[at + 64 :], capture_output=True, check=True
    )
    assert run.stdout == b"corrupt_image\n"
    assert run.stderr == b""


# One process, three threads, all kinds of bombs at once; prints its peak, for the test below.
HAIL = """
import io, json, resource, sys, threading, zlib
sys.path[:0] = {path!r}
from PIL import Image, PngImagePlugin
import test_decode_limits as t
from clipfleet.operators import ImageLimits, decode_image
from clipfleet.schemas.errors import RequestFailed

base = t.save(Image.new("RGB", (3000, 3000)), "PNG")
alpha = t.save(Image.new("RGBA", (3000, 3000), (1, 2, 3, 9)), "PNG")
progressive = t.save(Image.new("RGB", (3000, 3000)), "JPEG", progressive=True, exif=b"Exif\\0\\0" + bytes(100))
text = b"k\\0\\0" + zlib.compress(bytes(20_000_000))
chunk = len(text).to_bytes(4, "big") + b"zTXt" + text + zlib.crc32(b"zTXt" + text).to_bytes(4, "big")
small = t.save(Image.new("RGB", (64, 64)), "PNG")
profile = b"n\\0\\0" + zlib.compress(bytes(20_000_000))
icc = len(profile).to_bytes(4, "big") + b"iCCP" + profile + zlib.crc32(b"iCCP" + profile).to_bytes(4, "big")
big = 4000
kinds = ("PNG", "GIF", "JPEG", "WEBP", "TIFF", "PPM", "BMP", "JPEG2000", "AVIF")
hail = [
    base, alpha, progressive, small[:33] + chunk * 100 + small[33:], small[:33] + icc + small[33:],
    *(t.claiming(kind, big, big) for kind in kinds), *(t.claiming(kind, 16000, 16000) for kind in kinds),
]
limits = ImageLimits(max_pixels=32_000_000)
codes = []
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def decode():
    for data in hail:
        try:
            decode_image(data, limits, target=224)
            codes.append("ok")
        except RequestFailed as problem:
            codes.append(str(problem.code))

threads = [threading.Thread(target=decode) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({{"grown_mb": (peak - start) / 1024, "items": len(codes), "codes": sorted(set(codes))}}))
"""


def test_given_a_hail_of_bombs_on_many_threads_then_memory_stays_bounded():
    script = HAIL.format(path=[str(HERE), str(HERE.parent)])
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    told = json.loads(run.stdout)
    assert told["items"] == 3 * 23
    assert set(told["codes"]) <= {"ok", "corrupt_image", "too_many_pixels"}
    # One WebP of 16 megapixels, with its two canvases, takes 240 MB; three at once would be 720.
    assert told["grown_mb"] < 400, told
