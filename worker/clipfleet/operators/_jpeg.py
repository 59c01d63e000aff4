"""JPEG files without their metadata.

Pillow parses EXIF, MPF, XMP, Photoshop and dpi while opening, and a broken one can cost the picture (or, made
on purpose, memory and time). So orientation and ICC profile are taken here and the rest never reaches it.
The first picture of an MPO (a phone's depth or burst file) is simply the first JPEG of the bytes.
Source: ITU-T T.81 annex B, ICC.1:2010 annex B.4.
"""

from __future__ import annotations

from clipfleet.operators._container import Container, Unreadable
from clipfleet.operators._exif import orientation

__all__ = ["read_jpeg"]

_SOS, _EOI, _COMMENT, _APP1, _APP2 = 0xDA, 0xD9, 0xFE, 0xE1, 0xE2
# APP0 (JFIF) and APP14 (Adobe: is it RGB, YCCK, inverted?) say how to decode; the other thirteen do not.
_DROPPED = frozenset({*range(0xE1, 0xEE), 0xEF, _COMMENT})
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
_EXIF, _ICC = b"Exif\x00\x00", b"ICC_PROFILE\x00"
_MAX_SEGMENTS = 5_000
_MAX_PADDING = 4_096
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
    start = position = 2
    padding = segments = 0
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            padding += 1
        elif marker in _BARE:
            position += 2
            padding += 1
        elif marker in (_SOS, _EOI, 0):
            break
        else:
            length = int.from_bytes(data[position + 2 : position + 4], "big")
            end = position + 2 + length
            if length < 2 or end > len(data):
                break
            if marker in _DROPPED:
                kept.append(view[start:position])
                start = end
                body = data[position + 4 : end]
                if marker == _APP1 and body.startswith(_EXIF) and not exif:
                    exif = body
                elif marker == _APP2 and body.startswith(_ICC) and len(body) > 14:
                    profile.setdefault(body[12], body[14:])
            position = end
            segments += 1
        if segments > _MAX_SEGMENTS or padding > _MAX_PADDING:
            raise Unreadable("more header segments than a picture has")
    kept.append(view[start:])
    return Container(
        data=b"".join([view[:2], *kept]) if len(kept) > 1 else data,
        orientation=orientation(exif),
        profile=b"".join(profile[number] for number in sorted(profile)) or None,
        max_pixels=_MAX_PIXEL_SCANS // max(1, data.count(b"\xff\xda")),
    )
