"""Pictures with a colour profile come out in sRGB."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from clipfleet.operators import decode_image
from support.pictures import OPAQUE, RED, WHITE, close, pixel, png, save


def srgb():
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def swapped():
    """A valid RGB profile that is far from sRGB: its red and blue primaries change places."""
    profile = bytearray(srgb())
    tags = {}
    for index in range(struct.unpack_from(">I", profile, 128)[0]):
        at = 132 + 12 * index
        tags[bytes(profile[at : at + 4])] = at
    red, blue = (bytes(profile[tags[name] + 4 : tags[name] + 12]) for name in (b"rXYZ", b"bXYZ"))
    profile[tags[b"rXYZ"] + 4 : tags[b"rXYZ"] + 12] = blue
    profile[tags[b"bXYZ"] + 4 : tags[b"bXYZ"] + 12] = red
    return bytes(profile)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_given_a_profile_then_colours_become_srgb_in_every_container(kind):
    image = Image.new("RGB", (32, 32), (200, 40, 40))
    lossless = {"WEBP": {"lossless": True}}.get(kind, {"quality": 100} if kind in ("JPEG", "AVIF") else {})
    data = save(image, kind, icc_profile=swapped(), **lossless)
    assert close(pixel(decode_image(data)), (40, 40, 200), 12)


def test_given_srgb_itself_as_the_profile_then_no_pixel_changes():
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    assert decode_image(save(noise, "PNG", icc_profile=srgb())).tobytes() == noise.tobytes()


def test_given_alpha_and_a_profile_then_both_apply():
    data = save(Image.new("RGBA", (8, 8), (200, 40, 40, 0)), "PNG", icc_profile=swapped())
    assert pixel(decode_image(data)) == WHITE
    data = save(Image.new("RGBA", (8, 8), (200, 40, 40, 255)), "PNG", icc_profile=swapped())
    assert close(pixel(decode_image(data)), (40, 40, 200), 3)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_given_a_profile_of_another_colour_space_then_it_is_ignored(mode):
    image, expected = OPAQUE[mode]
    data = save(image, "TIFF", icc_profile=swapped())
    assert close(pixel(decode_image(data)), expected)


@pytest.mark.parametrize("cut", [0, 4, 127, 128, 200, 400])
def test_given_a_profile_cut_short_then_it_is_ignored(cut):
    image = Image.new("RGB", (8, 8), RED)
    assert close(pixel(decode_image(save(image, "PNG", icc_profile=swapped()[:cut]))), RED)


def test_given_a_profile_that_unpacks_to_a_thousandfold_then_it_is_ignored():
    packed = zlib.compressobj(9)
    million = b"\x00" * 1_000_000
    body = b"n\x00\x00" + b"".join(packed.compress(million) for _ in range(50)) + packed.flush()
    data = png(8, 8, 8, 2, [bytes(RED) * 8] * 8, (b"iCCP", body))
    assert pixel(decode_image(data)) == RED


def test_given_a_jpeg_profile_in_several_segments_then_their_numbers_decide_the_order():
    profile = swapped()
    jpeg = save(Image.new("RGB", (32, 32), RED), "JPEG", quality=100)
    half = len(profile) // 2
    parts = [b"ICC_PROFILE\x00\x02\x02" + profile[half:], b"ICC_PROFILE\x00\x01\x02" + profile[:half]]
    segments = b"".join(b"\xff\xe2" + struct.pack(">H", len(part) + 2) + part for part in parts)
    assert close(pixel(decode_image(jpeg[:2] + segments + jpeg[2:])), (40, 40, 200), 8)
