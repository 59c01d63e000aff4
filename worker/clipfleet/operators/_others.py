"""WebP, TIFF and ICO: what must be known before Pillow opens them.

Opening a WebP allocates its canvas, opening an ICO decodes it, and a TIFF's tiles and directories may claim
far more than its width and height. Sources: RFC 9649, TIFF 6.0 section 15, Microsoft's ICO layout.
"""

from __future__ import annotations

import struct

from clipfleet.operators._container import Container, Unreadable
from clipfleet.operators._exif import directory_cost, entries

__all__ = ["read_ico", "read_tiff", "read_webp"]

_PNG = b"\x89PNG\r\n\x1a\n"
_STRIP_OFFSETS, _TILE_WIDTH, _TILE_LENGTH, _TILE_OFFSETS = 273, 322, 323, 324
_MAX_STRIPS = 200_000
_MAX_TILE_PIXELS = 16 * 1024 * 1024


def read_webp(data: bytes) -> Container:
    """The canvas of a WebP, from its first chunk.

    Raises:
        Unreadable: the first chunk holds no size.
    """
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    else:
        raise Unreadable("the first WebP chunk holds no size")
    return Container(data, size=(width, height))


def read_tiff(data: bytes) -> Container:
    """Check a TIFF's first directory for claims that no picture needs.

    Raises:
        Unreadable: its entries overlap to more than the file, or it has millions of strips, or a tile of it is
            larger than 16 megapixels.
    """
    if directory_cost(data) > len(data):
        raise Unreadable("the directory claims more bytes than the file has")
    tile = {_TILE_WIDTH: 1, _TILE_LENGTH: 1}
    for entry in entries(data):
        if entry.tag in (_STRIP_OFFSETS, _TILE_OFFSETS) and entry.values > _MAX_STRIPS:
            raise Unreadable("more strips or tiles than a picture has")
        if entry.tag in tile and entry.inline and entry.type in (3, 4):
            (tile[entry.tag],) = struct.unpack_from(
                entry.order + ("H" if entry.type == 3 else "I"), data, entry.position
            )
    if tile[_TILE_WIDTH] * tile[_TILE_LENGTH] > _MAX_TILE_PIXELS:
        raise Unreadable("a tile is larger than a picture's")
    return Container(data)


def read_ico(data: bytes) -> Container:
    """The largest picture of an ICO: the PNG itself, or an icon of that one bitmap.

    Raises:
        Unreadable: there is no complete entry.
    """
    (count,) = struct.unpack_from("<H", data, 4)
    entry = max(
        (data[at : at + 16] for at in range(6, min(6 + 16 * count, len(data) - 15), 16)), key=_merit, default=b""
    )
    size, offset = struct.unpack_from("<II", entry, 8) if entry else (0, 0)
    picture = data[offset : offset + size]
    if len(picture) < 40:
        raise Unreadable("no picture in the icon")
    if picture.startswith(_PNG):
        return Container(picture, format="PNG")
    width, height = struct.unpack_from("<ii", picture, 4)
    alone = b"\x00\x00\x01\x00\x01\x00" + entry[:12] + (22).to_bytes(4, "little") + picture
    # A bitmap in an icon counts its rows twice, once for the mask.
    return Container(alone, size=(abs(width), abs(height) // 2))


def _merit(entry: bytes) -> tuple[int, int]:
    width, height = entry[0] or 256, entry[1] or 256
    return width * height, int.from_bytes(entry[6:8], "little")
