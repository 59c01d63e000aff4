"""The one EXIF tag that moves pixels, and how much reading a directory would cost.

Pillow's reader copies the value of every entry: a directory of 60,000 entries that all point at the same
30 MB asks for 2 TB. So orientation is read here, and a directory is measured before Pillow sees it.
Source: TIFF 6.0 section 2, Exif 2.32 section 4.6.4, BigTIFF as libtiff documents it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Entry", "directory_cost", "entries", "orientation"]

_TAG_ORIENTATION = 0x0112
_PREFIX = b"Exif\x00\x00"
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}


class Entry(NamedTuple):
    """One directory entry: where its value lies is resolved, whether in the entry or elsewhere."""

    tag: int
    type: int
    values: int
    size: int
    position: int
    order: str
    at: int
    inline: bool


def entries(data: bytes, start: int = 0) -> Iterator[Entry]:
    """The entries of the first directory of the TIFF structure at ``start``; none where there is no such thing."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[start : start + 2]))
    if order is None or len(data) < start + 8:
        return
    magic = bytes(data[start + 2 : start + 4])
    if magic in (b"*\x00", b"\x00*"):  # Pillow takes either order, as some writers got it wrong
        big, offset_at, offset_format, count_format, entry_format = False, 4, "I", "H", "HHI4s"
    elif magic in (b"+\x00", b"\x00+"):
        big, offset_at, offset_format, count_format, entry_format = True, 8, "Q", "Q", "HHQ8s"
    else:
        return
    try:
        (offset,) = struct.unpack_from(order + offset_format, data, start + offset_at)
        (count,) = struct.unpack_from(order + count_format, data, start + offset)
        at = start + offset + struct.calcsize(count_format)
        step = struct.calcsize(order + entry_format)
        for index in range(min(count, 65_536)):
            position = at + index * step
            tag, kind, number, value = struct.unpack_from(order + entry_format, data, position)
            size = _SIZES.get(kind, 0) * number
            inline = size <= len(value)
            where = position + step - len(value)
            if not inline:
                (target,) = struct.unpack(order + ("Q" if big else "I"), value)
                where = start + target
            yield Entry(tag, kind, number, size, where, order, position, inline)
    except (struct.error, OverflowError):
        return


def directory_cost(data: bytes, start: int = 0) -> int:
    """Bytes that Pillow would copy to read the first directory of the TIFF structure at ``start``."""
    return sum(e.size for e in entries(data, start) if not e.inline and e.position + e.size <= len(data))


def orientation(exif: bytes) -> int:
    """The orientation tag, 1 to 8; 1 where it is missing, out of range or unreadable."""
    while exif.startswith(_PREFIX):
        exif = exif[len(_PREFIX) :]
    for entry in entries(exif):
        if entry.tag == _TAG_ORIENTATION:
            letter = _INTEGERS.get(entry.type)
            if letter is None or entry.values < 1 or not entry.inline:
                return 1
            (value,) = struct.unpack_from(entry.order + letter, exif, entry.position)
            return value if 1 <= value <= 8 else 1
    return 1
