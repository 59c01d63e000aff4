"""A zip read by its directory, one member at a time.

``zipfile`` of the standard library is not used: it reads the whole directory into memory (half a kilobyte a member),
believes the sizes that a header tells, and refuses an archive for one strange member. The format:
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, with zip64; members stored or deflated.
"""

from __future__ import annotations

import stat
import struct
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ZipMember", "ZipStream"]

_END: Final = struct.Struct("<4s4H2LH")
_END64_PLACE: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_MAX_COMMENT: Final = 0xFFFF
_FULL: Final = 0xFFFFFFFF  # of a 32-bit number: look into the zip64 field
_ZIP64: Final = 1
_STORED, _DEFLATED = 0, 8
_OTHER_METHODS: Final = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd", 99: "AES"}
_UNIX: Final = 3


@dataclass(frozen=True, slots=True)
class ZipMember:
    """One member, as the directory has it.

    Attributes:
        name: as it is spelled there, with ``/`` between its parts.
        size: how many bytes it says it has.
        packed: how many bytes of the archive.
        kind: why it cannot be read: ``a link``, ``encrypted``, ``packed with bzip2``; empty when it can.
        method: stored or deflated.
        crc: of its content.
        offset: of its local header.
    """

    name: str
    size: int
    packed: int
    kind: str
    method: int
    crc: int
    offset: int


class ZipStream:
    """The members of one zip, in the order of its directory."""

    def __init__(self, file: IO[bytes]) -> None:
        """Find the directory.

        Args:
            file: seekable; it stays the caller's to close.

        Raises:
            RequestFailed: ``fetch_failed``: it has no directory, so it is cut, or no zip.
            OSError: it cannot be read.
        """
        self._file = file
        self._size = file.seek(0, 2)
        # Offsets count from the archive's own beginning: something may stand before it.
        self._begin, self._directory, self._length, self.members = self._find()
        self._read = 0

    def __iter__(self) -> Iterator[ZipMember]:
        """Each member.

        Raises:
            RequestFailed: the directory is damaged from there on.
            OSError: it cannot be read.
        """
        at, end = self._directory, self._directory + self._length
        for _ in range(self.members):
            head = self._bytes(at, _ENTRY.size)
            entry = _ENTRY.unpack(head)
            name_length, extra_length, comment_length = entry[10:13]
            if entry[0] != b"PK\1\2" or at + _ENTRY.size + name_length + extra_length > end:
                raise _broken("its directory is damaged")
            rest = self._bytes(at + _ENTRY.size, name_length + extra_length)
            yield _member(entry, rest[:name_length], rest[name_length:])
            at += _ENTRY.size + name_length + extra_length + comment_length

    def read(self, member: ZipMember) -> bytes:
        """A member's content, never more than it says it has.

        Raises:
            RequestFailed: ``corrupt_image``: it is damaged, or not of the size it says; ``bad_request``: what was read
                so far is more than there is, so that members overlap, as in an archive made to unpack for ever.
            OSError: it cannot be read.
        """
        start = self._begin + member.offset
        try:
            local = _LOCAL.unpack(self._bytes(start, _LOCAL.size))
            if local[0] != b"PK\3\4":
                raise _damaged("there is no member where the directory says")
            packed = self._bytes(start + _LOCAL.size + local[9] + local[10], member.packed)
            self._read += len(packed)
            if self._read > self._size:
                raise error_for(ErrorCode.BAD_REQUEST, "its members overlap: it is made to do harm")
            data = packed if member.method == _STORED else _inflated(packed, member.size)
        except (struct.error, zlib.error) as error:
            raise _damaged(str(error)) from None
        if len(data) != member.size or zlib.crc32(data) != member.crc:
            raise _damaged("its size or its checksum is wrong")
        return data

    def _find(self) -> tuple[int, int, int, int]:
        """Where the archive and its directory begin, how long that is, and how many members it has."""
        tail_at = max(0, self._size - _END.size - _MAX_COMMENT)
        tail = self._bytes(tail_at, self._size - tail_at)
        found = tail.rfind(b"PK\5\6")
        if found < 0 or len(tail) - found < _END.size:
            raise _broken("it has no directory at its end: it is cut, or no zip")
        _, disk, _, _, members, length, offset, _ = _END.unpack_from(tail, found)
        end = tail_at + found
        place_at = end - _END64_PLACE.size
        if place_at >= 0 and (place := self._bytes(place_at, _END64_PLACE.size)).startswith(b"PK\6\7"):
            # Where something stands before the archive the place is wrong by its length, and the record right before.
            end = min(_END64_PLACE.unpack(place)[2], place_at - _END64.size)
            if not self._bytes(end, _END64.size).startswith(b"PK\6\6"):
                end = place_at - _END64.size
            record = _END64.unpack(self._bytes(max(0, end), _END64.size))
            if record[0] != b"PK\6\6":
                raise _broken("its directory is damaged")
            disk, members, length, offset = record[4], record[7], record[8], record[9]
        if disk not in {0, 0xFFFF}:
            raise _broken("it is one of several parts; put them together first")
        begin = end - length - offset
        if begin < 0 or members * _ENTRY.size > length:
            raise _broken("its directory is damaged")
        return begin, begin + offset, length, members

    def _bytes(self, at: int, count: int) -> bytes:
        if not 0 <= at <= self._size - count:
            raise _broken("it ends too early")
        self._file.seek(at)
        data = self._file.read(count)
        if len(data) != count:
            raise _broken("it ends too early")
        return data


def _member(entry: tuple[int, ...], raw_name: bytes, extra: bytes) -> ZipMember:
    _, made, _, flags, method, _, _, crc, packed, size, *_, attributes, offset = entry
    wide = _zip64(extra)
    size, packed, offset = (next(wide, 0) if number == _FULL else number for number in (size, packed, offset))
    kind = ""
    if made >> 8 == _UNIX and stat.S_ISLNK(attributes >> 16):
        kind = "a link"
    elif flags & 1:
        kind = "encrypted"
    elif method not in {_STORED, _DEFLATED}:
        kind = f"packed with {_OTHER_METHODS.get(method, f'method {method}')}"
    return ZipMember(_name(raw_name), size, packed, kind, method, crc, offset)


def _name(raw: bytes) -> str:
    """Text: UTF-8 where it can be, whatever the flag says, since many programs forget it; else code page 437."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("cp437")
    # Windows programs write what they call a path.
    return text.partition("\0")[0].replace("\\", "/")


def _zip64(extra: bytes) -> Iterator[int]:
    """The 64-bit numbers, in the order of the fields that need one."""
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        if tag == _ZIP64:
            yield from (
                number for (number,) in struct.iter_unpack("<Q", extra[at + 4 : at + 4 + min(length, 24) // 8 * 8])
            )
            return
        at += 4 + length


def _inflated(packed: bytes, size: int) -> bytes:
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
    # One byte more tells whether there is more, and no bomb goes off.
    return unpacking.decompress(packed, size + 1)


def _broken(text: str) -> RequestFailed:
    return error_for(ErrorCode.FETCH_FAILED, text, retryable=False)


def _damaged(text: str) -> RequestFailed:
    return error_for(ErrorCode.CORRUPT_IMAGE, f"damaged in its archive: {text}")
