"""Whatever the bytes, a picture comes out or one of the protocol's verdicts: nothing else, ever."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from clipfleet.operators import ImageLimits, decode_image
from clipfleet.operators._exif import orientation
from clipfleet.schemas.errors import RequestFailed

CASES = Path(__file__).resolve().parents[1] / "cases" / "images"
VERDICTS = {"empty_input", "too_large", "unsupported_media", "corrupt_image", "too_many_pixels", "bad_shape"}
LIMITS = ImageLimits(max_pixels=1_000_000, slow_pixels=100_000)


def _seeds():
    seeds = [path.read_bytes() for path in sorted(CASES.iterdir()) if 0 < path.stat().st_size < 8_000]
    picture = Image.radial_gradient("L").resize((40, 30)).convert("RGB")
    for kind in ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP"):
        buffer = io.BytesIO()
        picture.save(buffer, kind)
        seeds.append(buffer.getvalue())
    for mode in ("1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "F"):
        for compression in ("raw", "tiff_lzw"):
            buffer = io.BytesIO()
            base = picture.convert("L") if mode in ("LA", "I", "I;16", "F") else picture
            base = base.convert("RGBA") if mode == "PA" else base
            base.convert(mode).save(buffer, "TIFF", compression=compression)
            seeds.append(buffer.getvalue())
    return seeds


SEEDS = _seeds()


def _survives(data):
    verdict = image = None
    try:
        image = decode_image(data, LIMITS, target=16)
    except RequestFailed as failure:
        verdict = failure
    if image is None:
        assert verdict.code in VERDICTS
        assert len(verdict.message) < 400
    else:
        assert image.mode == "RGB"
        assert image.width * image.height <= LIMITS.max_pixels


@st.composite
def mutated(draw):
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        # Half of the changes in the first bytes, where the headers are.
        top = min(len(data), 200) if draw(st.booleans()) else len(data)
        at = draw(st.integers(0, max(0, top - 1)))
        kind = draw(st.sampled_from(["set", "set", "insert", "delete", "repeat", "ones", "zeros"]))
        length = draw(st.integers(1, 16))
        if kind == "set":
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=16))
        elif kind == "delete":
            del data[at : at + length]
        elif kind == "repeat":
            data[at:at] = data[at : at + length]
        else:
            data[at : at + length] = (b"\xff" if kind == "ones" else b"\x00") * len(data[at : at + length])
    return bytes(data)


@given(mutated())
@settings(max_examples=600, deadline=None)
def test_given_a_valid_picture_with_bytes_changed_then_only_verdicts_come_out(data):
    _survives(data)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(mutated())
@settings(max_examples=30_000, deadline=None)
def test_given_many_more_of_them_then_only_verdicts_come_out(data):
    _survives(data)


@given(st.sampled_from(SEEDS), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None)
def test_given_a_picture_cut_off_anywhere_then_only_verdicts_come_out(seed, length):
    _survives(seed[:length])


SIGNATURES = [
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"II*\x00",
    b"BM",
    b"\x00\x00\x01\x00",
    b"P6 ",
    b"RIFF\x00\x00\x00\x00WEBPVP8X",
]


@given(st.sampled_from([b"", *SIGNATURES]), st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
@example(b"\x00\x00\x01\x00", b"\xff\xff")
@example(b"II*\x00", b"\x08\x00\x00\x00\xff\xff")
def test_given_a_signature_and_noise_then_only_verdicts_come_out(signature, noise):
    _survives(signature + noise)


@given(st.binary(max_size=200))
@example(b"II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00")
def test_given_any_exif_then_an_orientation_comes_out(data):
    assert 1 <= orientation(data) <= 8


WAYS = [
    *((kind, {}) for kind in ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")),
    ("JPEG", {"progressive": True}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {"exif": b"II*\x00"}),
    *(("TIFF", {"compression": name}) for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "zstd")),
]


@pytest.mark.parametrize(("kind", "how"), WAYS, ids=str)
@pytest.mark.parametrize("part", [0.2, 0.5, 0.8, 0.97])
def test_given_a_picture_cut_short_then_it_is_corrupt_and_not_half_grey(kind, how, part):
    noise = Image.effect_noise((200, 150), 90).convert("RGB")
    buffer = io.BytesIO()
    noise.save(buffer, kind, **how)
    data = buffer.getvalue()
    for options in ({}, {"target": 16}):
        with pytest.raises(RequestFailed) as failure:
            decode_image(data[: int(len(data) * part)], **options)
        assert failure.value.code == "corrupt_image"


@pytest.mark.parametrize(
    "error", [SyntaxError, OverflowError, MemoryError, KeyError, RecursionError, ZeroDivisionError, AssertionError]
)
def test_given_any_exception_from_pillow_then_it_is_corrupt_image_and_holds_no_picture(error, monkeypatch):
    def fail(self):
        raise error("pillow\x00 met\nsomething")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    with pytest.raises(RequestFailed) as failure:
        decode_image(buffer.getvalue())
    assert failure.value.code == "corrupt_image"
    assert failure.value.message.isprintable()
    assert failure.value.__cause__ is None
    assert failure.value.__context__ is None
