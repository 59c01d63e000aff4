"""How large an AVIF's frames really are.

The container's size binds nobody: a file of one kilobyte that claims 64 x 64 was seen to decode a frame of 64
megapixels first and scale it down afterwards. The AV1 sequence header at the start of each item tells.
Sources: ISO/IEC 14496-12 (``meta``, ``iloc``), AV1 specification section 5.5.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from clipfleet.operators._container import Container, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_avif"]

_MAX_ITEMS = 4096
_SEQUENCE_HEADER = 1


def read_avif(data: bytes) -> Container:
    """The largest frame that a still AVIF holds; unknown (``frame=None``) for what is laid out in unusual ways.

    Raises:
        Unreadable: there are more items than a picture has.
    """
    try:
        areas = [_frame_area(data[offset : offset + 64]) for offset in _items(data)]
    except (struct.error, IndexError):
        areas = []
    known = [area for area in areas if area is not None]
    # An image sequence keeps its frames elsewhere (moov): not looked into.
    sequence = data[8:12] == b"avis"
    return Container(data, frame=max(known) if known and not sequence else None)


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    for _ in range(_MAX_ITEMS):
        if start + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, start)
        header = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            header = 16
        elif size == 0:
            size = end - start
        if size < header or start + size > end:
            return
        yield kind, start + header, start + size
        start += size


def _items(data: bytes) -> Iterator[int]:
    """Where each item's data starts in the file."""
    for kind, start, end in _boxes(data, 0, len(data)):
        if kind == b"meta":
            for inner, at, _ in _boxes(data, start + 4, end):
                if inner == b"iloc":
                    yield from _locations(data, at)


def _locations(data: bytes, at: int) -> Iterator[int]:
    version, sizes, more = data[at], data[at + 4], data[at + 5]
    widths = sizes >> 4, sizes & 15, more >> 4, more & 15 if version else 0
    offset_size, length_size, base_size, index_size = widths
    wide = version == 2
    count = int.from_bytes(data[at + 6 : at + (10 if wide else 8)], "big")
    if count > _MAX_ITEMS:
        raise Unreadable("more items than a picture has")
    at += 10 if wide else 8
    for _ in range(count):
        at += (4 if wide else 2) + (2 if version else 0) + 2
        base = int.from_bytes(data[at : at + base_size], "big")
        at += base_size
        (extents,) = struct.unpack_from(">H", data, at)
        at += 2
        first = at + index_size
        yield base + int.from_bytes(data[first : first + offset_size], "big")
        at += extents * (index_size + offset_size + length_size)


def _frame_area(item: bytes) -> int | None:
    """Width times height of the sequence header in an item's first bytes; None where there is none to read."""
    at = 0
    while at + 2 <= len(item):
        kind, extended, sized = item[at] >> 3 & 15, item[at] >> 2 & 1, item[at] >> 1 & 1
        at += 1 + extended
        size = shift = 0
        while sized and at < len(item):
            size |= (item[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if item[at - 1] < 0x80:
                break
        if kind == _SEQUENCE_HEADER:
            return _read_sequence(_Bits(item[at:]))
        at += size
    return None


class _Bits:
    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise IndexError("the sequence header ends too early")
        return self._value >> self._left & ((1 << count) - 1)


def _read_sequence(bits: _Bits) -> int | None:
    bits.take(4)  # profile, still picture
    if bits.take(1):  # the reduced header of still pictures
        bits.take(5)
    else:
        if bits.take(1):  # timing: sequences alone have it
            return None
        delays = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            bits.take(1 if bits.take(5) > 7 else 0)
            bits.take(4 if delays and bits.take(1) else 0)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    return (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)
