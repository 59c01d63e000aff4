"""The pixels are those of open_clip's own preprocessing."""

from __future__ import annotations

import functools
import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clipfleet.models.config import ImageConfig
from clipfleet.operators import decode_image, fit, prepare_image

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def config(size=(224, 224), mode="shortest", interpolation="bicubic", fill=(0, 0, 0)):
    return ImageConfig(
        size=size, resize_mode=mode, interpolation=interpolation, fill_color=fill, mean=(0.5,) * 3, std=(0.5,) * 3
    )


@functools.cache
def picture(width, height, seed=0):
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(2, height // 7), max(2, width // 7), 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def save(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"compress_level": 1} if kind == "PNG" else options))
    return buffer.getvalue()


# What torchvision 0.29's transforms do to PIL pictures, written from its own source, in its own names.


def tv_resize(image, size, how):
    """``functional.resize``: one number is the shorter side."""
    width, height = image.size
    if isinstance(size, int):
        short, long = (width, height) if width <= height else (height, width)
        new_short, new_long = size, int(size * long / short)
        new_w, new_h = (new_short, new_long) if width <= height else (new_long, new_short)
    else:
        new_h, new_w = size
    return image if (height, width) == (new_h, new_w) else image.resize((new_w, new_h), how)


def tv_center_crop(image, size, fill=0):
    """``functional.center_crop``, which open_clip's ``center_crop_or_pad`` repeats with a fill."""
    crop_h, crop_w = size
    width, height = image.size
    if crop_w > width or crop_h > height:
        left, top = max(0, (crop_w - width) // 2), max(0, (crop_h - height) // 2)
        right, bottom = max(0, (crop_w - width + 1) // 2), max(0, (crop_h - height + 1) // 2)
        padded = np.pad(np.asarray(image), ((top, bottom), (left, right), (0, 0)))
        inside = np.zeros(padded.shape[:2], bool)
        inside[top : top + height, left : left + width] = True
        padded[~inside] = fill
        image = Image.fromarray(padded)
        width, height = image.size
        if (crop_w, crop_h) == (width, height):
            return image
    top, left = int(round((height - crop_h) / 2.0)), int(round((width - crop_w) / 2.0))  # noqa: RUF046 - as there
    return Image.fromarray(np.asarray(image)[top : top + crop_h, left : left + crop_w])


def open_clip_transform(image, wanted):
    how = FILTERS[wanted.interpolation]
    height, width = wanted.size

    def keep_ratio(longest, how):
        ratios = image.size[1] / height, image.size[0] / width
        ratio = max(ratios) * longest + min(ratios) * (1.0 - longest)
        return tv_resize(image, [round(side * 1.0 / ratio) for side in image.size[::-1]], how)

    if wanted.resize_mode == "longest":
        return tv_center_crop(keep_ratio(1.0, how), wanted.size, wanted.fill_color)
    if wanted.resize_mode == "squash":
        return tv_resize(image, [height, width], how)
    if height == width:
        return tv_center_crop(tv_resize(image, height, how), wanted.size)
    return tv_center_crop(keep_ratio(0.0, Image.Resampling.BICUBIC), wanted.size)


CONFIGS = [
    config(size, mode, interpolation, fill)
    for size, mode, interpolation, fill in itertools.product(
        [(224, 224), (32, 48), (63, 31)],
        ["shortest", "squash", "longest"],
        ["bicubic", "bilinear"],
        [(0, 0, 0), (9, 9, 9)],
    )
]


@pytest.mark.parametrize(
    "wanted", CONFIGS, ids=lambda c: f"{c.size[0]}x{c.size[1]}-{c.resize_mode}-{c.interpolation}-{c.fill_color[0]}"
)
@pytest.mark.parametrize("size", [(320, 240), (233, 300), (224, 224), (225, 224), (31, 77), (500, 20)])
def test_given_any_preprocessing_when_prepared_then_every_pixel_is_open_clips(wanted, size):
    image = picture(*size)
    expected = np.asarray(open_clip_transform(image, wanted))
    prepared = prepare_image(save(image), wanted)
    assert prepared.shape == (*wanted.size, 3)
    assert prepared.dtype == np.uint8
    assert np.array_equal(prepared, expected)


@given(
    width=st.integers(2, 400),
    height=st.integers(2, 400),
    size=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    mode=st.sampled_from(["shortest", "squash", "longest"]),
    square=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_given_any_sizes_when_fitted_then_roundings_are_open_clips(width, height, size, mode, square):
    wanted = config((size[0], size[0]) if square else size, mode)
    image = picture(width, height, seed=width * 401 + height)
    if mode == "longest" and min(round(s / max(height / size[0], width / wanted.size[1])) for s in image.size) < 1:
        return  # open_clip itself fails where a side rounds to nothing
    assert np.array_equal(np.asarray(fit(image, wanted)), np.asarray(open_clip_transform(image, wanted)))


def test_given_a_sliver_when_fitted_whole_then_a_side_never_rounds_to_nothing():
    assert fit(picture(400, 4), config((32, 32), "longest")).size == (32, 32)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_given_a_mode_of_independent_bands_then_converting_before_resizing_changes_nothing(mode):
    image = picture(640, 480).convert(mode)
    after = open_clip_transform(image.convert("RGB"), config())
    before = tv_center_crop(image.resize((298, 224), Image.Resampling.BICUBIC).convert("RGB"), (224, 224))
    assert np.array_equal(np.asarray(after), np.asarray(before))
    assert np.array_equal(prepare_image(save(image), config()), np.asarray(before))


@pytest.mark.parametrize("mode", ["P", "1"])
def test_given_a_palette_then_it_is_resized_as_the_colours_that_it_stands_for(mode):
    """Where open_clip takes the nearest index of each; its training data was converted first, as here."""
    image = picture(640, 480).convert(mode)
    expected = open_clip_transform(image.convert("RGB"), config())
    assert np.array_equal(prepare_image(save(image), config()), np.asarray(expected))


def cosine(one, two):
    one, two = one.astype(np.float64).ravel(), two.astype(np.float64).ravel()
    return one @ two / np.linalg.norm(one) / np.linalg.norm(two)


@pytest.mark.parametrize("size", [(320, 240), (700, 900), (1600, 1200)])
@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
def test_given_a_jpeg_when_scaled_while_decoding_then_the_pixels_hardly_differ(size, mode):
    image = picture(*size)
    data = save(image, "JPEG", quality=90)
    with Image.open(io.BytesIO(data)) as plain:
        expected = np.asarray(open_clip_transform(plain.convert("RGB"), config((128, 128), mode)))
    assert cosine(prepare_image(data, config((128, 128), mode)), expected) >= 0.9999


@pytest.mark.parametrize(("side", "scaled"), [(191, 191), (192, 96), (383, 192), (384, 96), (768, 96), (1600, 200)])
def test_given_a_target_then_a_jpeg_is_never_decoded_below_three_times_of_it(side, scaled):
    assert decode_image(save(picture(side, side), "JPEG"), target=32).width == scaled


def test_given_bytes_or_views_of_them_then_the_result_is_the_same():
    data = save(picture(64, 64))
    expected = decode_image(data).tobytes()
    assert decode_image(memoryview(data)).tobytes() == expected
    assert decode_image(bytearray(data)).tobytes() == expected


@pytest.mark.torch
@pytest.mark.parametrize("wanted", CONFIGS, ids=str)
def test_given_open_clip_itself_then_every_pixel_is_the_same(wanted):
    transform = pytest.importorskip("open_clip.transform")
    theirs = transform.image_transform(
        wanted.size,
        is_train=False,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        resize_mode=wanted.resize_mode,
        interpolation=wanted.interpolation,
        fill_color=wanted.fill_color[0],
    )
    for size in [(640, 480), (333, 500), (31, 77)]:
        image = picture(*size)
        expected = (theirs(image).numpy() * 255).round().astype(np.uint8).transpose(1, 2, 0)
        assert np.array_equal(prepare_image(save(image), wanted), expected)
