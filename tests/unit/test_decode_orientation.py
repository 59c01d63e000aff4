"""Upright, whatever the container and however its EXIF is written; broken metadata never costs the pixels."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from clipfleet.operators import ImageLimits, decode_image
from support.pictures import save

QUARTERS = ((220, 30, 30), (30, 180, 40), (30, 50, 210), (230, 210, 40))


def scene(width=96, height=64):
    """Four colours, one a quarter: each of the eight orientations looks different."""
    image = Image.new("RGB", (width, height))
    for index, colour in enumerate(QUARTERS):
        image.paste(colour, (index % 2 * width // 2, index // 2 * height // 2, width, height))
    image.paste(QUARTERS[1], (width // 2, 0, width, height // 2))
    image.paste(QUARTERS[2], (0, height // 2, width // 2, height))
    return image


def exif(orientation, *, order="<", kind=3):
    value = struct.pack(order + {1: "B3x", 3: "H2x", 4: "I", 6: "b3x", 8: "h2x", 9: "i"}[kind], orientation)
    header = (b"II*\x00" if order == "<" else b"MM\x00*") + struct.pack(order + "I", 8)
    return header + struct.pack(order + "HHHI", 1, 0x0112, kind, 1) + value + b"\x00" * 4


def mpo(image, tag):
    return save(
        image, "MPO", quality=95, subsampling=0, exif=b"Exif\x00\x00" + tag, append_images=[image], save_all=True
    )


def png_raw_profile(image, tag, *, packed):
    """The way of ImageMagick before PNG had a chunk for it."""
    text = b"\nexif\n%8d\n" % (len(tag) + 6) + (b"Exif\x00\x00" + tag).hex().encode() + b"\n"
    name = b"Raw profile type exif\x00"
    body = name + (b"\x00" + zlib.compress(text) if packed else text)
    return with_chunk(save(image, "PNG"), b"zTXt" if packed else b"tEXt", body)


def with_chunk(png, name, body, *, crc=None):
    """A PNG with one more chunk after its header."""
    crc = zlib.crc32(name + body) if crc is None else crc
    chunk = struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc)
    return png[:33] + chunk + png[33:]


CONTAINERS = {
    "JPEG": lambda image, tag: save(image, "JPEG", quality=95, subsampling=0, exif=b"Exif\x00\x00" + tag),
    "MPO": mpo,
    "PNG": lambda image, tag: save(image, "PNG", exif=tag),
    "PNG tEXt": lambda image, tag: png_raw_profile(image, tag, packed=False),
    "PNG zTXt": lambda image, tag: png_raw_profile(image, tag, packed=True),
    "WEBP lossless": lambda image, tag: save(image, "WEBP", lossless=True, exif=tag),
    "WEBP": lambda image, tag: save(image, "WEBP", quality=95, exif=b"Exif\x00\x00" + tag),
    "AVIF": lambda image, tag: save(image, "AVIF", quality=95, exif=tag),
}


def assert_upright(image, size=(96, 64), tolerance=30):
    assert image.size == size
    width, height = size
    for index, colour in enumerate(QUARTERS):
        at = (width // 4 + index % 2 * width // 2, height // 4 + index // 2 * height // 2)
        assert np.abs(np.subtract(image.getpixel(at), colour)).max() <= tolerance, at


def stored(orientation):
    """The scene as a camera held that way stores it."""
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    return scene() if orientation == 1 else scene().transpose(back[orientation])


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_given_any_orientation_in_any_container_when_decoded_then_it_is_upright(container, orientation):
    data = CONTAINERS[container](stored(orientation), exif(orientation))
    assert_upright(decode_image(data))


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_given_any_orientation_in_a_tiff_when_decoded_then_it_is_upright(compression, orientation):
    data = save(stored(orientation), "TIFF", compression=compression, tiffinfo={0x0112: orientation})
    assert_upright(decode_image(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_given_a_big_jpeg_scaled_while_decoding_then_it_is_upright_too(orientation):
    big = stored(orientation)
    big = big.resize((big.width * 10, big.height * 10))
    image = decode_image(CONTAINERS["JPEG"](big, exif(orientation)), target=64)
    assert image.width < 960
    assert_upright(image, image.size)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", [1, 3, 4, 6, 8, 9])
def test_given_the_tag_in_any_integer_type_and_byte_order_then_it_is_read(order, kind):
    assert_upright(decode_image(CONTAINERS["PNG"](stored(6), exif(6, order=order, kind=kind))))


@pytest.mark.parametrize("value", [0, 9, 255, 65535])
@pytest.mark.parametrize("container", CONTAINERS)
def test_given_an_orientation_out_of_range_then_it_is_ignored(container, value):
    assert_upright(decode_image(CONTAINERS[container](scene(), exif(value))))


@pytest.mark.parametrize(
    "tag",
    [
        b"",
        b"II",
        b"garbage that is no TIFF structure",
        b"II*\x00\xff\xff\xff\xff",
        b"II*\x00\x08\x00\x00\x00\xff\xff",
        exif(6)[:14],
        exif(6).replace(struct.pack("<HHI", 0x0112, 3, 1), struct.pack("<HHI", 0x0112, 5, 1)),
        exif(6).replace(struct.pack("<HHI", 0x0112, 3, 1), struct.pack("<HHI", 0x0112, 3, 0xFFFFFFFF)),
        exif(6).replace(struct.pack("<HHI", 0x0112, 3, 1), struct.pack("<HHI", 0x0112, 99, 1)),
        b"Exif\x00\x00" * 50,
    ],
)
@pytest.mark.parametrize("container", ["JPEG", "PNG", "PNG zTXt", "WEBP lossless", "WEBP"])
def test_given_broken_exif_when_decoded_then_the_pixels_are_kept(container, tag):
    assert_upright(decode_image(CONTAINERS[container](scene(), tag)))


def test_given_a_directory_that_asks_for_a_terabyte_then_nothing_of_it_is_read():
    wide = struct.pack("<HHII", 0x9286, 7, 60_000, 8) * 5_000
    tag = b"II*\x00\x08\x00\x00\x00" + struct.pack("<H", 5_000) + wide
    assert_upright(decode_image(CONTAINERS["JPEG"](scene(), tag[:65_000])))
    assert_upright(decode_image(CONTAINERS["PNG"](scene(), tag)))


def test_given_a_tiff_whose_exif_directory_lies_outside_then_the_pixels_are_kept():
    data = save(scene(), "TIFF", tiffinfo={0x8769: 0x7FFFFFF0, 0x8825: 5})
    assert_upright(decode_image(data))


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"name\x00\x01rest", b"name\x00\x00not zlib", b"\x00\x00" + zlib.compress(b"x" * 128)]
)
def test_given_a_broken_png_profile_then_the_pixels_are_kept(body):
    assert_upright(decode_image(with_chunk(save(scene(), "PNG"), b"iCCP", body)))


@pytest.mark.parametrize(
    "name", [b"tEXt", b"zTXt", b"iTXt", b"pHYs", b"gAMA", b"cHRM", b"sRGB", b"acTL", b"tIME", b"eXIf"]
)
@pytest.mark.parametrize("crc", [None, 0])
@pytest.mark.parametrize("body", [b"", b"\x00\x01", b"k\x00\x00" + zlib.compress(b"\x00" * 4_000_000)])
def test_given_a_broken_or_bloated_png_chunk_then_the_pixels_are_kept(name, crc, body):
    assert_upright(decode_image(with_chunk(save(scene(), "PNG"), name, body, crc=crc)))


def test_given_a_transparency_chunk_of_the_wrong_length_then_the_pixels_are_kept():
    assert_upright(decode_image(with_chunk(save(scene(), "PNG"), b"tRNS", b"\x00")))


def test_given_broken_jpeg_segments_then_the_pixels_are_kept():
    jpeg = save(scene(), "JPEG", quality=95, subsampling=0)

    def segment(marker, body):
        return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body

    broken = [
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\x00<not xml"),
        segment(0xE2, b"MPF\x00garbage"),
        segment(0xE2, b"ICC_PROFILE\x00"),
        segment(0xE2, b"ICC_PROFILE\x00\x07\x01half"),
        segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\x01"),
        segment(0xEE, b"Ado"),
        segment(0xE0, b"JFIF"),
        segment(0xFE, b"\xff\xd9 not the end"),
    ]
    for part in [*broken, b"".join(broken)]:
        assert_upright(decode_image(jpeg[:2] + part + jpeg[2:]))


def test_given_ordinary_pictures_when_compared_with_pillow_then_upright_means_the_same():
    for orientation in range(1, 9):
        data = CONTAINERS["PNG"](stored(orientation), exif(orientation))
        with Image.open(io.BytesIO(data)) as image:
            expected = ImageOps.exif_transpose(image).convert("RGB")
        assert decode_image(data, ImageLimits()).tobytes() == expected.tobytes()
