"""JPEG files without their metadata.

Pillow parses EXIF, MPF, XMP, Photoshop and dpi while opening, and a broken one can cost the picture (or, made
on purpose, memory and time). So orientation and ICC profile are taken here and the rest never reaches it.
The first picture of an MPO (a phone's depth or burst file) is simply the first JPEG of the bytes.
Source: ITU-T T.81 annex B, ICC.1:2010 annex B.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.operators._container import Container, Unreadable
from clipfleet.operators._exif import orientation

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_jpeg"]

_SOS, _EOI, _COMMENT, _APP1, _APP2 = 0xDA, 0xD9, 0xFE, 0xE1, 0xE2
# APP0 (JFIF) and APP14 (Adobe: is it RGB, YCCK, inverted?) say how to decode; the other thirteen do not.
_DROPPED = frozenset({*range(0xE1, 0xEE), 0xEF, _COMMENT})
# Cut shorter, they make Pillow refuse the picture.
_SHORTEST = {b"JFIF": 14, b"Adobe": 12}
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
_EXIF, _ICC = b"Exif\x00\x00", b"ICC_PROFILE\x00"
_MAX_STEPS = 10_000
# Each scan walks all blocks: a few hundred bytes more can cost another second. 64 megapixels in 10 scans, which
# is what encoders write, is a third of this.
_MAX_PIXEL_SCANS = 2_000_000_000


def read_jpeg(data: bytes) -> Container:
    """Split the header of a JPEG.

    Raises:
        Unreadable: the header is built to be slow to read.
    """
    kept: list[memoryview] = []
    view = memoryview(data)
    exif = b""
    profile: dict[int, bytes] = {}
    copied = 0
    for marker, start, end in _segments(data):
        body = data[start + 4 : end]
        if marker not in _DROPPED and not _too_short(body):
            continue
        kept.append(view[copied:start])
        copied = end
        if marker == _APP1 and body.startswith(_EXIF) and not exif:
            exif = body
        elif marker == _APP2 and body.startswith(_ICC) and len(body) > 14:
            profile.setdefault(body[12], body[14:])
    return Container(
        data=b"".join([*kept, view[copied:]]) if kept else data,
        orientation=orientation(exif),
        profile=b"".join(profile[number] for number in sorted(profile)) or None,
        max_pixels=_MAX_PIXEL_SCANS // max(1, data.count(b"\xff\xda")),
    )


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, start and end of each whole segment before the first scan."""
    position = 2
    budget = _MAX_STEPS
    while position + 4 <= len(data) and data[position] == 0xFF:
        budget -= 1
        if budget < 0:
            raise Unreadable("more header segments than a picture has")
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker in _BARE:
            position += 2
        elif marker in (_SOS, _EOI, 0):
            return
        else:
            length = int.from_bytes(data[position + 2 : position + 4], "big")
            end = position + 2 + length
            if length < 2 or end > len(data):
                return
            yield marker, position, end
            position = end


def _too_short(body: bytes) -> bool:
    return any(body.startswith(name) and len(body) < length for name, length in _SHORTEST.items())
