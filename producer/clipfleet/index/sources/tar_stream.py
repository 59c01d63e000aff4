"""A tar read once from its beginning to wherever it ends, damaged or not.

``tarfile`` of the standard library is not used for the walk: at a damaged header in the middle it ends as if the
archive did, without a word, and it reads headers of any length into memory. Its parser of one header is used.
Formats: ustar, old GNU and pax (https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html), plain or in gzip.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from dataclasses import dataclass
from gzip import BadGzipFile, GzipFile
from typing import TYPE_CHECKING, Final, Self

from clipfleet.index.files import printable, unreadable
from clipfleet.index.sources.item import opened
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

    from clipfleet.index.sources.item import Place

__all__ = ["Gap", "Member", "TarStream"]

_BLOCK: Final = 512
_CHUNK: Final = 1 << 20
# Long names and pax records; real ones have some hundred bytes.
_MAX_EXTENSION: Final = 1 << 20
# As long as a path can be; an id is shorter still, and names are part of messages.
_MAX_NAME: Final = 4096
# Padding after the end mark is at most a tape record, 10 KiB by default; a second archive may follow it.
_MAX_AFTER_END: Final = 1 << 20
_OTHER_PACKINGS: Final = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_KINDS: Final = {
    tarfile.LNKTYPE: "a link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.DIRTYPE: "a folder",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One member.

    Attributes:
        name: its whole name, as valid text.
        size: bytes of it that the archive holds.
        data: its content; None where it was not asked for or cannot be given.
        kind: why there can be no content: ``a link``, ``a device``, ``sparse``; empty for a regular file.
        doubtful: whether the name may be another one, so that not even its suffix tells anything.
    """

    name: str
    size: int
    data: bytes | None = None
    kind: str = ""
    doubtful: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether it is nothing but a folder."""
        return self.kind == "a folder"


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are no member's: a damaged header and what belonged to it.

    Attributes:
        offset: where they begin.
    """

    offset: int


class _CutError(Exception):
    """The archive ends, or cannot be read on, where it should not."""


class TarStream:
    """The members of one tar; a context manager, to be iterated once.

    Attributes:
        trouble: after the iteration why it is incomplete; empty when it is whole.
    """

    def __init__(self, path: Path | Place, wanted: Callable[[str], int]) -> None:
        """Open it.

        Args:
            path: the archive, plain or in gzip, whatever its name.
            wanted: by a member's name how many bytes it may have for its content to be read; 0 = it is not.

        Raises:
            RequestFailed: it cannot be opened, or is no archive of these kinds.
        """
        self.trouble = ""
        self._wanted = wanted
        self._raw = opened(path)
        self._file: BufferedReader | GzipFile = self._raw
        self._size: int | None = None
        self._offset = 0
        self._extended: dict[str, str] = {}
        try:
            self._size = self._raw.seek(0, os.SEEK_END)
            self._raw.seek(0)
            self._unpack()
        except OSError as error:
            self._raw.close()
            raise unreadable(error) from None
        except BaseException:
            self._raw.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._raw.close()

    @property
    def packed(self) -> bool:
        """Whether passing over a member costs as much as reading it."""
        return self._size is None

    def __iter__(self) -> Iterator[Member | Gap]:
        try:
            yield from self._members()
        except _CutError as error:
            self.trouble = str(error)

    def _unpack(self) -> None:
        head = self._raw.peek(8)[:8]
        for magic, name in _OTHER_PACKINGS.items():
            if head.startswith(magic):
                raise error_for(ErrorCode.UNSUPPORTED_MEDIA, f"packed with {name}; gzip is read, or unpack it first")
        if head.startswith(b"\x1f\x8b"):
            self._file, self._size = GzipFile(fileobj=self._raw), None

    def _members(self) -> Iterator[Member | Gap]:
        ended_at: int | None = None
        in_gap = zeros = False
        while (block := self._block()) is not None:
            here = self._offset - _BLOCK
            zeros = not block.strip(b"\0")
            if (header := None if zeros else _header(block)) is not None:
                after_gap, in_gap, ended_at = in_gap, False, None
                if (member := self._member(header, after_gap=after_gap)) is not None:
                    yield member
            elif ended_at is not None:
                if here - ended_at > _MAX_AFTER_END:
                    return
            elif zeros and not in_gap:
                ended_at = here
            elif not in_gap:
                _check_damage(block, first=not here)
                in_gap = True
                self._extended.clear()
                yield Gap(here)
        # Zeros in a gap may be what a member's header was lost of; only the last ones are an end mark.
        if ended_at is None and not zeros:
            raise _CutError("it ends without an end mark" if self._offset else "it is empty")

    def _member(self, header: tarfile.TarInfo, *, after_gap: bool) -> Member | None:
        """The member of a header, or None when the header only says something of the next one."""
        if header.type in {
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.SOLARIS_XHDTYPE,
        }:
            self._extend(header)
            return None
        if header.type == tarfile.XGLTYPE:
            self._pass(header.size)
            return None
        extended, self._extended = self._extended, {}
        name = printable(extended.get("GNU.sparse.name") or extended.get("path") or header.name)
        if len(name) > _MAX_NAME:
            name, extended = f"{name[:100]}…", {"bad": "of a name beyond all measure"}
        if kind := extended.get("bad") or (after_gap and not extended and _may_be_cut(header.name)):
            self._pass(header.size if header.type not in _KINDS else 0, name)
            return Member(name, header.size, kind=str(kind), doubtful=True)
        if header.type in _KINDS:
            return Member(name, 0, kind=_KINDS[header.type])
        digits = extended.get("size", str(header.size))
        if not digits.isdecimal():
            return Member(name, 0, kind="damaged: its size is no number")
        if header.type == tarfile.GNUTYPE_SPARSE:
            self._pass_sparse_map(header)
        return self._content(name, min(int(digits[:20]), 1 << 62), _special(header, extended))

    def _content(self, name: str, size: int, kind: str) -> Member:
        if kind or size > self._wanted(name):
            self._pass(size, name)
            return Member(name, size, kind=kind)
        return Member(name, size, self._take(size, name))

    def _extend(self, header: tarfile.TarInfo) -> None:
        """Keep what a long name or a pax header says of the next member."""
        if header.size > _MAX_EXTENSION:
            self._pass(header.size)
            self._extended["bad"] = "of a name beyond all measure"
            return
        data = self._take(header.size, "a long name")
        if header.type == tarfile.GNUTYPE_LONGNAME:
            self._extended["path"] = data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        elif header.type != tarfile.GNUTYPE_LONGLINK:
            try:
                self._extended |= _pax_records(data)
            except ValueError:
                self._extended["bad"] = "damaged: its pax header cannot be read"

    def _pass_sparse_map(self, header: tarfile.TarInfo) -> None:
        # The old GNU form: blocks of the map follow the header as long as each says that one more does.
        more = bool(getattr(header, "_sparse_structs", (0, False))[1])
        while more:
            more = bool(self._take(_BLOCK, header.name)[504])

    def _block(self) -> bytes | None:
        """The next block, whose last may be less than one; None at the end."""
        block = self._read(_BLOCK)
        if not block:
            return None
        self._offset += _BLOCK
        return block

    def _take(self, size: int, name: str) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise _CutError(f"it ends in the middle of {printable(name)}")
        self._offset += size
        self._pass(-size % _BLOCK, name, padding=True)
        return data

    def _pass(self, size: int, name: str = "a header", *, padding: bool = False) -> None:
        whole = size if padding else size + -size % _BLOCK
        cut = _CutError(f"it ends in the middle of {printable(name)}")
        if self._size is not None:
            if self._offset + size > self._size and not padding:
                raise cut
            self._offset = min(self._offset + whole, self._size)
            self._raw.seek(self._offset)
            return
        left = whole
        while left > 0:
            passed = len(self._read(min(left, _CHUNK)))
            left -= passed
            if not passed:
                if padding or left < _BLOCK:
                    return  # what is missing is padding: the next block tells that this is the end
                raise cut
        self._offset += whole

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except EOFError:
            raise _CutError("the gzip data end too early") from None
        except (zlib.error, BadGzipFile):
            raise _CutError("the gzip data are damaged") from None
        except OSError as error:
            raise _CutError(f"it cannot be read on: {error.strerror or error}") from None


def _may_be_cut(name: str) -> str:
    """After a damaged header, which may have held the whole name; empty when this one is whole in any case."""
    # Long names are cut to the field's 100 bytes, and pax writers put ? for what is not ASCII.
    cut = len(name.encode("utf-8", "surrogateescape")) >= 100 or "?" in name
    return "of a name that may be cut: the header before it is damaged" if cut else ""


def _check_damage(block: bytes, *, first: bool) -> None:
    """Whether a block that is no header may be a damaged one."""
    if len(block) < _BLOCK:
        raise _CutError("it ends in the middle of a header")
    if first and block[257:262] != b"ustar":
        raise error_for(ErrorCode.UNSUPPORTED_MEDIA, "not a tar: it does not begin with a header")


def _special(header: tarfile.TarInfo, extended: dict[str, str]) -> str:
    """Why the bytes of a member are not simply its content; empty when they are."""
    if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse.") for key in extended):
        return "sparse"
    return "" if header.type in tarfile.REGULAR_TYPES else "of a kind that is not known"


def _header(block: bytes) -> tarfile.TarInfo | None:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None
    return header if header.size >= 0 else None


def _pax_records(data: bytes) -> dict[str, str]:
    r"""``"<length> <key>=<value>\n"`` again and again.

    Raises:
        ValueError: they are not.
    """
    records: dict[str, str] = {}
    at, end = 0, len(data.rstrip(b"\0"))
    while at < end:
        blank = data.index(b" ", at, at + 8)
        length = int(data[at:blank])
        record = data[blank + 1 : at + length]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not blank - at < length <= end - at or not equals or not record.endswith(b"\n"):
            raise ValueError
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        at += length
    return records
