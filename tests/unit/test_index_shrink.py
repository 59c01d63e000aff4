"""Large pictures are sent smaller, and look the same to a model."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFilter

from clipfleet.index import shrink
from clipfleet.index.shrink import shrunk
from clipfleet.operators import decode_image
from support.pictures import save


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(shrink, "_LARGE_BYTES", 1_000)


def scene(width=640, height=480, mode="RGB"):
    """Smooth noise with a dark corner, so that a turned one is seen to be turned."""
    noise = np.random.default_rng(3).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    image.paste((0, 0, 0), (0, 0, width // 2, height // 4))
    return image.convert(mode)


def seen(data, size=56):
    """What a model is shown of a picture, 0 to 255."""
    image = decode_image(data).resize((size, size), Image.Resampling.BICUBIC, reducing_gap=None)
    return np.asarray(image, np.float64)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_given_a_large_picture_then_its_shorter_side_is_what_was_asked_for_and_it_looks_the_same(kind, mode):
    data = save(scene(mode=mode), kind, **({"lossless": True} if kind == "WEBP" else {}))
    small = shrunk(data, 224)
    assert len(small) < len(data)
    assert Image.open(io.BytesIO(small)).size == (299, 224)
    assert np.abs(seen(small) - seen(data)).mean() < 1.5


@pytest.mark.parametrize("tag", range(1, 9))
def test_given_an_orientation_then_the_small_picture_is_upright(tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    data = save(scene(), "JPEG", quality=95, exif=exif.tobytes())
    small = shrunk(data, 224)
    assert min(Image.open(io.BytesIO(small)).size) == 224
    assert not Image.open(io.BytesIO(small)).getexif()
    assert np.abs(seen(small) - seen(data)).mean() < 1.5


def test_given_a_colour_profile_then_it_goes_with_the_picture():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    small = shrunk(save(scene(), "JPEG", icc_profile=profile), 224)
    assert Image.open(io.BytesIO(small)).info["icc_profile"] == profile


def animated():
    frames = [scene(), scene().filter(ImageFilter.BLUR)]
    return save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)


@pytest.mark.parametrize(
    "data",
    [
        save(scene(mode="RGBA"), "PNG"),
        save(scene(mode="CMYK"), "JPEG"),
        save(scene().convert("P"), "PNG"),
        save(scene(), "TIFF"),
        save(scene(200, 1600), "PNG"),
        save(scene(), "PNG")[:-2_000],
        animated(),
        b"\xff\xd8\xff" + b"no picture" * 500,
        b"",
    ],
    ids=["transparent", "cmyk", "palette", "tiff", "narrow", "cut", "animated", "none", "empty"],
)
def test_given_what_would_change_or_cannot_be_decoded_then_it_is_sent_as_it_is(data):
    assert shrunk(data, 224) is data


def test_given_small_files_huge_pictures_or_nothing_asked_then_they_are_sent_as_they_are(monkeypatch):
    data = save(scene(), "PNG")
    assert shrunk(data, 0) is data
    monkeypatch.setattr(shrink, "_MAX_PIXELS", 640 * 480 - 1)
    assert shrunk(data, 224) is data
    monkeypatch.undo()
    assert shrunk(data, 224) is data  # below 2 MiB


def test_given_a_bomb_then_it_is_left_to_the_worker(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    data = save(scene(), "PNG")
    assert shrunk(data, 224) is data
