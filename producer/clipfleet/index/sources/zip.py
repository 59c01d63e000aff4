"""Pictures inside zip archives; an id is ``<archive>/<path inside>``."""

from __future__ import annotations

from itertools import compress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from clipfleet.index.files import MAX_FILE_BYTES, PICTURE_SUFFIXES, printable, unreadable
from clipfleet.index.sources.item import Failure, Item, Skip, opened
from clipfleet.index.sources.seen import Met
from clipfleet.index.sources.zip_stream import ZipMember, ZipStream
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clipfleet.index.sources.item import Event, Place
    from clipfleet.index.sources.seen import Seen

__all__ = ["ZIP_SUFFIXES", "Zips", "zip_events"]

ZIP_SUFFIXES: Final = (".zip",)


class Zips:
    """Archives, one after the other."""

    def __init__(self, paths: Sequence[Path | Place], name: str) -> None:
        """Take the archives.

        Args:
            paths: the archives, each of which may be missing.
            name: what the user called them.
        """
        self._paths = paths
        self._name = name

    @property
    def about(self) -> str:
        """Which kind it was taken for."""
        archives = "a zip archive" if len(self._paths) == 1 else f"{len(self._paths):,} zip archives"
        return f"{self._name}: {archives}; ids are ARCHIVE/PATH"

    def stems(self) -> list[str]:
        """With what the ids of each archive begin."""
        return [_stem(printable(str(path))) for path in self._paths]

    def only(self, kept: Sequence[bool]) -> Zips:
        """Some of the archives."""
        return Zips(list(compress(self._paths, kept)), self._name)

    def events(self, seen: Seen) -> Iterator[Event]:
        """Their pictures; what is damaged costs itself alone."""
        for path in self._paths:
            label = printable(str(path))
            try:
                with opened(path) as file:
                    yield from zip_events(file, label, seen)
            except RequestFailed as error:
                yield Failure(_stem(label), label, error, whole=True)

    def count(self) -> Iterator[object]:
        """Each picture by the archive's directory."""
        for path in self._paths:
            try:
                with opened(path) as file:
                    yield from (each for each in ZipStream(file) if _suffix(each.name) in PICTURE_SUFFIXES)
            except RequestFailed:
                yield path


def zip_events(file: IO[bytes], label: str, seen: Seen) -> Iterator[Event]:
    """The pictures of one archive, whose name ends in ``label``.

    Where the directory breaks off, a ``Failure`` of the archive comes last.
    """
    stem = _stem(label)
    try:
        archive = ZipStream(file)
        for member in archive:
            if (event := _event(archive, member, stem, label, seen)) is not None:
                yield event
    except OSError as error:
        yield Failure(stem, label, unreadable(error), whole=True)
    except RequestFailed as error:
        yield Failure(stem, label, error, whole=True)


def _event(archive: ZipStream, member: ZipMember, stem: str, label: str, seen: Seen) -> Event | None:
    if member.name.endswith("/"):
        return None
    parts = [part for part in member.name.split("/") if part not in {"", "."}]
    if not parts or _suffix(parts[-1]) not in PICTURE_SUFFIXES or any(_hidden(part) for part in parts):
        return Skip(Skip.OTHER)
    name = printable("/".join(parts))
    id_, place = f"{stem}/{name}", f"{label}/{name}"
    try:
        data = _content(archive, member, parts)
    except RequestFailed as error:
        return Failure(id_, place, error)
    match seen.add(id_, data):
        case Met.SAME:
            return Skip(Skip.DUPLICATE)
        case Met.TAKEN:
            return Failure(id_, place, error_for(ErrorCode.BAD_REQUEST, "another picture has the same id"))
    return Item(id_, place, data, {"path": id_, "name": printable(parts[-1])}, len(data))


def _content(archive: ZipStream, member: ZipMember, parts: list[str]) -> bytes:
    if ".." in parts:
        # Nothing is ever opened by this name, but it would be stored as if something could.
        raise error_for(ErrorCode.BAD_REQUEST, "a name with '..' leads out of its archive")
    if member.kind:
        raise error_for(ErrorCode.UNSUPPORTED_MEDIA, f"a member that is {member.kind} is not read")
    # Both: deflate can pad any picture with empty blocks.
    if max(member.size, member.packed) > MAX_FILE_BYTES:
        raise error_for(ErrorCode.TOO_LARGE, f"{member.size:,} bytes")
    return archive.read(member)


def _hidden(part: str) -> bool:
    return part.startswith(".") and part != ".."


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _stem(label: str) -> str:
    name = PurePosixPath(label).name
    return name[: -len(ZIP_SUFFIXES[0])] if name.lower().endswith(ZIP_SUFFIXES) else name
