"""Every mode that Pillow can open comes out as the colours that a viewer shows."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from clipfleet.operators import decode_image
from clipfleet.operators.colour import to_rgb
from clipfleet.schemas.errors import RequestFailed
from support.pictures import GREY, OPAQUE, RED, WHITE, close, pixel, png, save

HALF_RED = (228, 148, 148)  # half of RED, half of white
CLEAR = {
    "LA": (Image.new("LA", (8, 8), (0, 128)), (127, 127, 127)),
    "La": (Image.new("LA", (8, 8), (0, 128)).convert("La"), (127, 127, 127)),
    "PA": (Image.new("RGBA", (8, 8), (*RED, 128)).convert("PA"), HALF_RED),
    "RGBA": (Image.new("RGBA", (8, 8), (*RED, 128)), HALF_RED),
    "RGBa": (Image.new("RGBA", (8, 8), (*RED, 128)).convert("RGBa"), HALF_RED),
}


def test_given_pillows_modes_when_listed_then_each_has_a_case():
    beside = {"I;16N"}  # the machine's own order: one of L and B
    assert set(OPAQUE) | set(CLEAR) | beside == set(Image.MODES) | {
        "I;16L",
        "I;16B",
        "I;16",
        "I;16N",
        "PA",
        "La",
        "RGBa",
        "RGBX",
        "HSV",
    }


@pytest.mark.parametrize("mode", OPAQUE)
def test_given_an_opaque_mode_when_converted_then_its_colour_is_kept(mode):
    image, expected = OPAQUE[mode]
    assert image.mode == mode
    result = to_rgb(image, WHITE)
    assert result.mode == "RGB"
    assert close(pixel(result), expected), pixel(result)


@pytest.mark.parametrize("mode", CLEAR)
def test_given_half_transparency_when_converted_then_the_background_shows_through(mode):
    image, expected = CLEAR[mode]
    assert image.mode == mode
    assert close(pixel(to_rgb(image, WHITE)), expected), pixel(to_rgb(image, WHITE))
    on_black = np.subtract(expected, 127)
    assert close(pixel(to_rgb(image, (0, 0, 0))), on_black, 3)


def test_given_a_background_when_decoding_then_it_is_the_one_asked_for():
    data = save(Image.new("RGBA", (8, 8), (255, 0, 255, 0)), "PNG")
    assert pixel(decode_image(data)) == WHITE
    assert pixel(decode_image(data, background=(1, 2, 3))) == (1, 2, 3)


@pytest.mark.parametrize(
    ("depth", "colour", "row", "key", "expected"),
    [
        (1, 0, b"\x00", b"\x00\x00", WHITE),
        (1, 0, b"\x00", b"\x00\x01", (0, 0, 0)),
        (2, 0, b"\xaa\xaa", b"\x00\x02", WHITE),
        (2, 0, b"\xaa\xaa", b"\x00\x01", (170, 170, 170)),
        (4, 0, b"\x77" * 4, b"\x00\x07", WHITE),
        (8, 0, b"\x77" * 8, b"\x00\x77", WHITE),
        (16, 0, b"\x12\x34" * 8, b"\x12\x34", WHITE),
        (16, 0, b"\x12\x34" * 8, b"\x12\x35", (18, 18, 18)),
        (8, 2, b"\x01\x02\x03" * 8, b"\x00\x01\x00\x02\x00\x03", WHITE),
        (8, 2, b"\x01\x02\x03" * 8, b"\x00\x01\x00\x02\x00\x04", (1, 2, 3)),
        (16, 2, b"\x12\x34\x56\x78\x9a\xbc" * 8, b"\x12\x34\x56\x78\x9a\xbc", WHITE),
    ],
)
def test_given_a_colour_that_stands_for_transparent_then_it_shows_the_background(depth, colour, row, key, expected):
    data = png(8, 8, depth, colour, [row] * 8, (b"tRNS", key))
    assert pixel(decode_image(data)) == expected


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [b"\x00", b"\x80", b"\x80\xff"])
def test_given_a_palette_with_alpha_then_each_entry_has_its_own(depth, alpha):
    data = png(8, 8, depth, 3, [b"\x00" * depth] * 8, (b"PLTE", bytes((*RED, 0, 0, 0))), (b"tRNS", alpha))
    expected = WHITE if alpha == b"\x00" else HALF_RED
    assert close(pixel(decode_image(data)), expected)


@pytest.mark.parametrize(
    ("colour", "row", "expected"),
    [
        (0, b"\x80\x80" * 8, (128, 128, 128)),
        (2, b"\xff\xff\x80\x80\x00\x00" * 8, (255, 128, 0)),
        (4, b"\x00\x00\x80\x00" * 8, (127, 127, 127)),
        (6, b"\xc8\x00\x28\x00\x28\x00\x80\x00" * 8, HALF_RED),
    ],
)
def test_given_16_bits_a_sample_in_a_png_then_they_are_scaled_and_not_clipped(colour, row, expected):
    assert close(pixel(decode_image(png(8, 8, 16, colour, [row] * 8))), expected)


def test_given_every_16_bit_grey_then_8_bits_are_the_nearest():
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    grey = np.asarray(to_rgb(Image.fromarray(values), WHITE))[..., 0]
    # Within 16 bits the rounding is off by at most 1/256 of a level.
    assert np.abs(grey - values / 257.0).max() <= 0.5 + 1 / 256


def tiff(values, *, bits, photometric=1, sample_format=1, order="<"):
    """A one-strip TIFF, for the layouts that Pillow does not write."""
    height, width = 8, 8
    header = (b"II*\x00" if order == "<" else b"MM\x00*") + struct.pack(order + "I", 8)
    tags = [
        (256, 3, width), (257, 3, height), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 0),
        (277, 3, 1), (278, 3, height), (279, 4, len(values)), (339, 3, sample_format),
    ]  # fmt: skip
    start = 8 + 2 + 12 * len(tags) + 4
    body = b"".join(
        struct.pack(order + "HHI", tag, kind, 1)
        + struct.pack(order + ("H2x" if kind == 3 else "I"), start if tag == 273 else value)
        for tag, kind, value in tags
    )
    return header + struct.pack(order + "H", len(tags)) + body + b"\x00" * 4 + values


@pytest.mark.parametrize("order", "<>")
def test_given_a_16_bit_tiff_then_it_is_scaled(order):
    data = tiff(struct.pack(order + "64H", *[120 * 257] * 64), bits=16, order=order)
    assert close(pixel(decode_image(data)), GREY)


def test_given_white_is_zero_in_16_bits_then_it_is_not_a_negative():
    data = tiff(struct.pack("<64H", *[120 * 257] * 64), bits=16, photometric=0)
    assert close(pixel(decode_image(data)), (135, 135, 135))


def test_given_a_12_bit_tiff_then_4095_is_white():
    data = tiff(b"\xff\xff\xff" * 4 * 8, bits=12)
    assert close(pixel(decode_image(data)), WHITE, 1)


def ramp(low, high, kind):
    return np.linspace(low, high, 64).astype(kind).reshape(8, 8)


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [
        (0.0, 1.0, 0, 255),
        (0.0, 0.5, 0, 128),
        (0.0, 255.0, 0, 255),
        (0.0, 65535.0, 0, 255),
        (-40.0, 40.0, 0, 255),
        (0.0, 1e30, 0, 255),
        (-3e38, 3e38, 0, 255),
    ],
)
def test_given_floats_of_any_range_then_the_documented_scale_applies(low, high, first, last):
    data = tiff(ramp(low, high, "<f4").tobytes(), bits=32, sample_format=3)
    image = decode_image(data)
    assert close(pixel(image, (0, 0)), (first,) * 3, 1)
    assert close(pixel(image, (7, 7)), (last,) * 3, 1)


def test_given_floats_that_are_no_numbers_then_the_others_keep_their_scale():
    values = ramp(0.0, 1.0, "<f4")
    values[3, 3], values[4, 4], values[5, 5] = np.nan, np.inf, -np.inf
    image = decode_image(tiff(values.tobytes(), bits=32, sample_format=3))
    assert pixel(image, (3, 3)) == (0, 0, 0)
    assert pixel(image, (4, 4)) == WHITE
    assert pixel(image, (5, 5)) == (0, 0, 0)
    assert pixel(image, (7, 7)) == WHITE


def test_given_nothing_but_nan_then_it_is_black_and_no_crash():
    image = decode_image(tiff(struct.pack("<64f", *[float("nan")] * 64), bits=32, sample_format=3))
    assert pixel(image) == (0, 0, 0)


@pytest.mark.parametrize(
    ("sample_format", "kind", "low", "high"), [(1, "<i4", 0, 255), (2, "<i4", -70000, 70000), (1, "<i4", 0, 65535)]
)
def test_given_32_bit_integers_then_the_documented_scale_applies(sample_format, kind, low, high):
    image = decode_image(tiff(ramp(low, high, kind).tobytes(), bits=32, sample_format=sample_format))
    assert pixel(image, (0, 0)) == (0, 0, 0)
    assert pixel(image, (7, 7)) == WHITE


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "F"])
@pytest.mark.parametrize("compression", ["raw", "tiff_adobe_deflate"])
def test_given_a_tiff_of_any_mode_that_pillow_writes_then_its_colour_is_kept(mode, compression):
    image, expected = {**OPAQUE, **CLEAR}[mode]
    assert close(pixel(decode_image(save(image, "TIFF", compression=compression))), expected, 3)


def test_given_a_tiff_layout_that_is_not_decoded_then_it_is_unsupported_media():
    data = tiff(b"\x00" * 64 * 8, bits=64, sample_format=3)
    with pytest.raises(RequestFailed) as failure:
        decode_image(data)
    assert failure.value.code == "unsupported_media"


@pytest.mark.parametrize("kind", ["AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"])
def test_given_each_format_of_the_list_then_it_is_decoded(kind):
    image = Image.new("RGB", (32, 32), RED)
    assert close(pixel(decode_image(save(image, kind))), RED, 4)


@pytest.mark.parametrize("bitmap_format", ["png", "bmp"])
def test_given_an_icon_then_its_largest_picture_counts_with_its_alpha(bitmap_format):
    large = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    large.paste((*RED, 255), (0, 0, 32, 64))
    data = save(large, "ICO", sizes=[(16, 16), (64, 64)], bitmap_format=bitmap_format)
    image = decode_image(data)
    assert image.size == (64, 64)
    assert pixel(image, (10, 10)) == RED
    assert pixel(image, (50, 50)) == WHITE


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
def test_given_an_animation_or_many_pages_then_the_first_counts(kind):
    first, second = Image.new("RGB", (32, 32), RED), Image.new("RGB", (32, 32), (0, 0, 255))
    data = save(first, kind, save_all=True, append_images=[second])
    assert close(pixel(decode_image(data)), RED, 4)


def test_given_a_gif_with_a_transparent_colour_then_the_hidden_colour_is_not_seen():
    image = Image.new("P", (16, 16), 1)
    image.putpalette([255, 0, 255, *RED])
    image.paste(0, (8, 0, 16, 16))
    decoded = decode_image(save(image, "GIF", transparency=0))
    assert pixel(decoded, (3, 3)) == RED
    assert pixel(decoded, (12, 3)) == WHITE


@pytest.mark.parametrize("kind", ["WEBP", "AVIF", "TIFF", "JPEG2000", "ICO", "PNG"])
def test_given_hidden_magenta_in_any_container_with_alpha_then_it_is_not_seen(kind):
    image = Image.new("RGBA", (32, 32), (255, 0, 255, 0))
    image.paste((*RED, 255), (0, 0, 16, 32))
    decoded = decode_image(save(image, kind))
    assert close(pixel(decoded, (4, 4)), RED, 6)
    assert close(pixel(decoded, (28, 4)), WHITE, 6)


@pytest.mark.parametrize("photometric", ["plain", "premultiplied"])
def test_given_a_tiff_with_premultiplied_alpha_then_it_is_not_multiplied_twice(photometric):
    image = Image.new("RGBA", (8, 8), (*RED, 128))
    kept = image.convert("RGBa").tobytes() if photometric == "premultiplied" else image.tobytes()
    data = save(Image.frombytes("RGBA", (8, 8), kept), "TIFF")
    at = data.index(struct.pack("<HHI", 338, 3, 1)) + 8
    data = data[:at] + struct.pack("<H", 1 if photometric == "premultiplied" else 2) + data[at + 2 :]
    assert close(pixel(decode_image(data)), HALF_RED)


def test_given_a_gif_whose_first_frame_leaves_part_of_the_canvas_free_then_the_background_shows_there():
    data = bytearray(save(Image.new("RGB", (16, 16), RED), "GIF"))
    struct.pack_into("<HH", data, 6, 32, 32)
    image = decode_image(bytes(data), background=(1, 2, 3))
    assert image.size == (32, 32)
    assert pixel(image, (3, 3)) == RED
    assert pixel(image, (30, 30)) == (1, 2, 3)


@pytest.mark.parametrize("other", ["EPS", "PDF", "PCX", "TGA", "SGI", "ICNS", "DDS", "QOI"])
def test_given_a_format_beside_the_list_then_it_is_unsupported_media(other):
    with pytest.raises(RequestFailed) as failure:
        decode_image(save(Image.new("RGB", (32, 32), RED), other))
    assert failure.value.code == "unsupported_media"


def test_the_layouts_of_pillow_that_a_grey_scale_depends_on_are_the_known_ones():
    """A new release that turns white-is-zero round itself would make ours turn it back."""
    for prefix in (b"II", b"MM"):
        for (order, photometric, *_), (mode, raw) in TiffImagePlugin.OPEN_INFO.items():
            if order == prefix and photometric == 0 and mode in ("I;16", "F"):
                assert not raw.endswith("I")
