"""Walk folders of pictures without ever listing one into memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from clipfleet.index.files import PICTURE_SUFFIXES, printable, unreadable
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Found", "has_suffix", "walk", "walk_below"]


@dataclass(frozen=True, slots=True)
class Found:
    """One thing met on the walk.

    Attributes:
        path: where it is.
        id: its path relative to its source, with ``/``, as valid UTF-8; the row's id.
        error: why it cannot be indexed; None for a picture to be read.
        below: whether pictures may be below it that could not be seen.
    """

    path: Path
    id: str
    error: RequestFailed | None = None
    below: bool = False


def walk(
    sources: Sequence[Path],
    *,
    on_skipped: Callable[[Path], None] | None = None,
    on_empty: Callable[[Path], None] | None = None,
) -> Iterator[Found]:
    """The pictures below ``sources``, in the order in which the file system gives them.

    - A source that is a file is taken whatever its name; in folders, names with a picture's suffix are.
    - Hidden files and folders are passed over, and so are pipes, sockets and devices.
    - The other files of a folder are passed over as well; ``on_skipped`` is called with each.
    - A source that is given twice is walked once.
    - Links are followed; no folder is entered twice, so loops end.
    - What cannot be read is yielded with its ``error``, and so are links that lead nowhere: to a folder, perhaps.
    - ``on_empty`` is called with each source that gave nothing at all.
    - An id that an earlier folder holds as well is an error: the later picture would replace the earlier one.

    Raises:
        FileNotFoundError: a source does not exist.
    """
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(str(source))
    once: dict[Path, Path] = {}
    for source in sources:
        once.setdefault(source.resolve(), source)
    earlier: list[Path] = []
    for source in once.values():
        empty = True
        for found in _walk_source(source, on_skipped):
            empty = False
            yield _unless_taken(found, source, earlier)
        if empty and on_empty is not None:
            on_empty(source)
        if source.is_dir():
            earlier.append(source)


def _walk_source(source: Path, on_skipped: Callable[[Path], None] | None) -> Iterator[Found]:
    if not source.is_dir():
        yield Found(source, printable(source.name))
        return
    yield from walk_below(source, lambda name, is_folder: is_folder or has_suffix(name), on_skipped)


def walk_below(
    source: Path, taken: Callable[[str, bool], bool], on_skipped: Callable[[Path], None] | None = None
) -> Iterator[Found]:
    """The files below a folder for which ``taken(path, is_folder)`` is true, as ``walk`` finds them.

    Args:
        source: the folder.
        taken: asked with the whole path of each file, and of each folder, which is entered if it is true.
        on_skipped: called with each file that is passed over; hidden ones are not told.
    """
    with _Scans(source) as scans:
        yield from scans.enter(source)
        for entry in scans:
            if isinstance(entry, Found):
                yield entry
            elif entry.name.startswith("."):
                continue
            elif _is_folder(entry):
                if taken(entry.path, True):
                    yield from scans.enter(Path(entry.path))
            elif taken(entry.path, False):
                yield from _picture(source, entry)
            elif taken(entry.path, True) and (error := _closed_door(entry)) is not None:
                yield Found(Path(entry.path), _relative(source, Path(entry.path)), error, below=True)
            elif on_skipped is not None:
                on_skipped(Path(entry.path))


class _Scans:
    """The open scans of one source, one a level: memory follows the depth, and neither files nor folders."""

    def __init__(self, source: Path) -> None:
        from clipfleet.index.sources.seen import Seen  # noqa: PLC0415  its package imports this module

        self._source = source
        self._seen = Seen()
        self._open: list[tuple[Path, Iterator[os.DirEntry[str]], Callable[[], None]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._leave()
        self._seen.__exit__()

    def _leave(self) -> None:
        _folder, _scan, close = self._open.pop()
        close()

    def enter(self, folder: Path) -> Iterator[Found]:
        """Go on in ``folder``, unless it was entered before; yields what keeps us out."""
        try:
            status = folder.stat()
            which = f"{status.st_dev} {status.st_ino}"
            if which not in self._seen:
                scan = os.scandir(folder)
                # Not before: under each of its names it is to be told that it cannot be read.
                self._seen.add(which, b"")
                self._open.append((folder, scan, scan.close))
        except OSError as error:
            yield Found(folder, _relative(self._source, folder), unreadable(error), below=True)

    def __iter__(self) -> Iterator[os.DirEntry[str] | Found]:
        while self._open:
            folder, scan, _close = self._open[-1]
            try:
                entry = next(scan, None)
            except OSError as error:
                self._leave()
                yield Found(folder, _relative(self._source, folder), unreadable(error), below=True)
                continue
            if entry is None:
                self._leave()
            else:
                yield entry


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _closed_door(entry: os.DirEntry[str]) -> RequestFailed | None:
    """Why nobody knows what a link leads to, perhaps a folder of a disk that is not mounted; None when it is known."""
    try:
        entry.is_dir()
        if entry.is_symlink():
            os.stat(entry.path)  # noqa: PTH116 - as the rest of the walk
    except OSError as error:
        return unreadable(error)
    return None


def has_suffix(name: str) -> bool:
    """Whether a file is named like a picture."""
    return os.path.splitext(name)[1].lower() in PICTURE_SUFFIXES  # noqa: PTH122 - a Path costs ten times as much


def _picture(source: Path, entry: os.DirEntry[str]) -> Iterator[Found]:
    path = Path(entry.path)
    try:
        if entry.is_file():
            yield Found(path, _relative(source, path))
        elif entry.is_symlink() and not path.exists():
            yield Found(path, _relative(source, path), unreadable(OSError(0, "the link leads nowhere")))
    except OSError as error:
        yield Found(path, _relative(source, path), unreadable(error))


def _relative(source: Path, path: Path) -> str:
    return printable(path.relative_to(source).as_posix())


def _unless_taken(found: Found, source: Path, earlier: Sequence[Path]) -> Found:
    if found.error is not None or not earlier:
        return found
    relative = found.path.relative_to(source) if source.is_dir() else Path(source.name)
    for other in earlier:
        if os.path.lexists(other / relative):
            return Found(found.path, found.id, error_for(ErrorCode.BAD_REQUEST, f"{other} holds the same id"))
    return found
