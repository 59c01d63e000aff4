"""PNG files without the chunks that do not carry pixels.

Pillow refuses the whole picture for a bad CRC in a comment or a text chunk that unpacks to more than a
megabyte. So the critical chunks and transparency are kept, orientation and ICC profile are taken here (with
their own caps) and the rest never reaches it. Source: PNG 3rd edition, sections 5, 11 and 13.
"""

from __future__ import annotations

import re
import zlib

from clipfleet.operators._container import Container, Unreadable
from clipfleet.operators._exif import orientation

__all__ = ["MAX_PROFILE", "inflate", "read_png"]

MAX_PROFILE = 4 * 1024 * 1024
_MAX_EXIF = 1024 * 1024
_MAX_CHUNKS = 50_000
_KEPT = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
_RAW_EXIF = (b"Raw profile type exif\x00", b"Raw profile type APP1\x00")
_TRNS_BYTES = {0: 2, 2: 6}
_PALETTE = 3


def inflate(packed: bytes, limit: int) -> bytes | None:
    """Unpack a zlib stream; None where it is broken or unpacks to more than ``limit`` bytes."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(packed, limit + 1)
    except zlib.error:
        return None
    return plain if len(plain) <= limit else None


def read_png(data: bytes) -> Container:
    """Split a PNG into what carries pixels and what does not.

    Raises:
        Unreadable: there are more chunks than any picture has.
    """
    view = memoryview(data)
    kept: list[memoryview] = []
    found: dict[bytes, bytes] = {}
    start = position = 8
    colour = data[25] if len(data) > 25 else 0
    chunks = 0
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        name = data[position + 4 : position + 8]
        end = position + 12 + length
        if end > len(data) or name == b"IEND":
            break
        body = view[position + 8 : end - 4]
        if name not in _KEPT and not (name == b"tRNS" and _fits(body, colour)):
            kept.append(view[start:position])
            start = end
            _note(found, name, body)
        position = end
        chunks += 1
        if chunks > _MAX_CHUNKS:
            raise Unreadable("more chunks than a picture has")
    kept.append(view[start:])
    return Container(
        data=b"".join([view[:8], *kept]) if len(kept) > 1 else data,
        orientation=orientation(found.get(b"eXIf", b"")),
        profile=found.get(b"iCCP"),
        depth=data[24] if len(data) > 24 else 0,
    )


def _fits(body: memoryview, colour: int) -> bool:
    # A transparency chunk of the wrong length makes Pillow refuse the picture.
    if colour == _PALETTE:
        return 1 <= len(body) <= 256
    return len(body) == _TRNS_BYTES.get(colour, -1)


def _note(found: dict[bytes, bytes], name: bytes, body: memoryview) -> None:
    if name == b"eXIf" and len(body) <= _MAX_EXIF:
        found[b"eXIf"] = bytes(body)
    elif name == b"iCCP" and len(body) <= MAX_PROFILE:
        _, _, rest = bytes(body).partition(b"\x00")
        plain = inflate(rest[1:], MAX_PROFILE)
        if plain:
            found.setdefault(b"iCCP", plain)
    elif name in (b"tEXt", b"zTXt") and len(body) <= _MAX_EXIF:
        raw = bytes(body)
        if raw.startswith(_RAW_EXIF):
            _, _, rest = raw.partition(b"\x00")
            text = inflate(rest[1:], 2 * _MAX_EXIF) if name == b"zTXt" else rest
            found.setdefault(b"eXIf", _unhex(text or b""))


def _unhex(text: bytes) -> bytes:
    # ImageMagick's way before PNG had eXIf: "\nexif\n     1234\n" and lines of hexadecimal digits.
    match = re.match(rb"\s*\w+\s+\d+\s", text)
    if match is None:
        return b""
    try:
        return bytes.fromhex(text[match.end() :].decode("ascii"))
    except ValueError:
        return b""
