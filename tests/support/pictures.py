"""Pictures made for tests."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

WHITE = (255, 255, 255)
RED, GREY = (200, 40, 40), (120, 120, 120)


def save(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixel(image, at=(4, 4)):
    return image.getpixel(at)


def close(colour, expected, tolerance=2):
    return np.abs(np.subtract(colour, expected)).max() <= tolerance


def png(width, height, depth, colour, rows, *chunks):
    """A PNG made by hand, for what Pillow does not write."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    packed = zlib.compress(b"".join(b"\x00" + row for row in rows))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    extra = b"".join(chunk(*pair) for pair in chunks)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


# By Pillow's mode: a picture without transparency, and what is seen of it.
OPAQUE = {
    "1": (Image.new("1", (8, 8), 1), WHITE),
    "L": (Image.new("L", (8, 8), 120), GREY),
    "P": (Image.new("RGB", (8, 8), RED).quantize(4), RED),
    "RGB": (Image.new("RGB", (8, 8), RED), RED),
    "RGBX": (Image.new("RGBX", (8, 8), (*RED, 0)), RED),
    "CMYK": (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), (255, 0, 0)),
    "YCbCr": (Image.new("RGB", (8, 8), RED).convert("YCbCr"), RED),
    "LAB": (Image.new("RGB", (8, 8), RED).convert("LAB"), RED),
    "HSV": (Image.new("RGB", (8, 8), RED).convert("HSV"), RED),
    "I": (Image.new("I", (8, 8), 120), GREY),
    "I;16": (Image.new("I;16", (8, 8), 120 * 257), GREY),
    "I;16L": (Image.new("I;16L", (8, 8), 120 * 257), GREY),
    "I;16B": (Image.new("I;16B", (8, 8), 120 * 257), GREY),
    "F": (Image.new("F", (8, 8), 120 / 255), GREY),
}
