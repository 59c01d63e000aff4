"""Where pictures come from: one interface over folders, patterns, shards and tables.

A source streams events (``Item``, ``Failure``, ``Skip``) and never lists anything into memory. The seam for what is
built on top: an item's id is the same in every run, and its picture is not read, nor fetched, before it is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.index.files import printable
from clipfleet.index.sources.braces import expand
from clipfleet.index.sources.folder import Folders, Glob, is_pattern, matches
from clipfleet.index.sources.item import Event, Failure, Hides, Item, Skip, Source, SourceError, Stored, opened
from clipfleet.index.sources.remote import RemoteFile, RemoteFolder, is_remote, remote_files
from clipfleet.index.sources.seen import Seen
from clipfleet.index.sources.table import TABLE_SUFFIXES, Columns, Table
from clipfleet.index.sources.tar import TAR_SUFFIXES, Tars
from clipfleet.index.sources.video import VIDEO_SUFFIXES, Videos
from clipfleet.index.sources.zip import ZIP_SUFFIXES, Zips
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "TABLE_SUFFIXES",
    "Columns",
    "Event",
    "Failure",
    "Folders",
    "Glob",
    "Hides",
    "Item",
    "Seen",
    "Skip",
    "Source",
    "SourceError",
    "Stored",
    "Table",
    "Tars",
    "Videos",
    "Zips",
    "count_all",
    "open_sources",
]


def open_sources(
    names: Sequence[str | os.PathLike[str]], columns: Columns | None = None, *, every_s: float = 1.0
) -> list[Source]:
    """What each name stands for, by its suffix.

    ``.tar``, ``.tar.gz``, ``.tgz``: webdataset shards; ``.zip``: archives; ``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``,
    ``.parquet``: tables; ``.mp4``, ``.mov``, ``.mkv``, ``.webm``, ``.avi`` and such: videos; everything else: pictures,
    in folders or by itself. ``{000..099}`` and ``{a,b}`` are expanded, and so are ``*``, ``?``, ``[a-z]`` and ``**``,
    unless something has that very name. What begins as ``s3://`` does is read by fsspec.

    Args:
        names: of the sources.
        columns: which columns of tables hold what.
        every_s: seconds between two frames of a video; 0: every frame.

    Raises:
        FileNotFoundError: a source does not exist; of a brace range of shards: none does.
        SourceError: a table cannot be used so; a range stands for too much.
    """
    folders: list[Path] = []
    sources: list[Source] = []
    for name in names:
        text = os.fspath(name)
        found = (_remote if is_remote(text) else _file)(text, columns or Columns(), every_s)
        if found is not None:
            sources += found
            continue
        for each in _expanded(text):
            if is_pattern(each) and not os.path.lexists(each):
                sources.append(Glob(each))
            else:
                folders.append(Path(each))
    for folder in folders:
        if not folder.exists():
            raise FileNotFoundError(str(folder))
    if folders:
        sources.insert(0, Folders(folders, alone=not sources and len(folders) == 1))
    return sources


def _file(text: str, columns: Columns, every_s: float) -> list[Source] | None:
    """What a file is by its suffix, where it holds more than one picture."""
    low = text.lower()
    if not low.endswith((*TAR_SUFFIXES, *ZIP_SUFFIXES, *VIDEO_SUFFIXES, *TABLE_SUFFIXES)) or Path(text).is_dir():
        return None
    if low.endswith(TAR_SUFFIXES):
        return [Tars(_paths(text), printable(text))]
    if low.endswith(ZIP_SUFFIXES):
        return [Zips(_paths(text), printable(text))]
    if low.endswith(VIDEO_SUFFIXES):
        return [Videos(_videos(text), printable(text), every_s)]
    return [_table(path, columns) for path in _paths(text, there=True)]


def _videos(text: str) -> list[tuple[Path, str]]:
    """Videos by name, or by patterns, of which the ids are those that pictures would have."""
    found: list[tuple[Path, str]] = []
    for each in _expanded(text):
        if is_pattern(each) and not os.path.lexists(each):
            # Folders that cannot be searched, too: each is then a video that cannot be opened.
            found += sorted((one.path, one.id) for one in Glob(each).found(None))
        else:
            found.append((Path(each), printable(Path(each).name)))
    if not any(os.path.lexists(path) for path, _ in found):
        raise FileNotFoundError(text)
    return found


def _remote(text: str, columns: Columns, every_s: float) -> list[Source] | None:
    low = text.lower()
    if low.endswith(TAR_SUFFIXES):
        return [Tars(remote_files(text), printable(text))]
    if low.endswith(ZIP_SUFFIXES):
        return [Zips(remote_files(text), printable(text))]
    if low.endswith(VIDEO_SUFFIXES):
        return [Videos([(file, printable(file.name)) for file in remote_files(text)], printable(text), every_s)]
    if low.endswith(TABLE_SUFFIXES):
        # A disk has links, of which stores know nothing.
        files = remote_files(text, there=True)
        return [_table(Path(file.path) if file.is_on_disk else file, columns) for file in files]
    return [RemoteFolder(each) for each in _expanded(text)]


def count_all(sources: Sequence[Source]) -> Iterator[object]:
    """Something for each item there may be; for the time left.

    Raises:
        OSError: it cannot be told cheaply, or at all; the run itself will say why.
    """
    try:
        for source in sources:
            yield from source.count()
    except RequestFailed as error:
        raise OSError(str(error)) from None


def _expanded(text: str) -> Iterator[str]:
    """A name's expansions; itself where something has that very name."""
    if os.path.lexists(text):
        yield text
        return
    try:
        yield from expand(text)
    except ValueError as error:
        raise SourceError(str(error)) from None


def _paths(text: str, *, there: bool = False) -> list[Path]:
    """Files of shards or tables; with ``there`` all of them must exist, else one."""
    paths: list[Path] = []
    for each in _expanded(text):
        paths += matches(each, closed=True) if is_pattern(each) and not os.path.lexists(each) else [Path(each)]
    missing = (path for path in paths if not os.path.lexists(path))
    if (first := next(missing, None)) is not None and (there or not any(map(os.path.lexists, paths))):
        raise FileNotFoundError(str(first))
    return paths


def _table(path: Path | RemoteFile, columns: Columns) -> Source:
    try:
        if not path.name.lower().endswith(TABLE_SUFFIXES):
            opened(path).close()  # a folder that a pattern could not search
        return Table(path, columns)
    except RequestFailed as error:
        return _Unreadable(path, error)


class _Unreadable:
    """A table that cannot be opened: a failure like any other, since the other sources can."""

    about = ""

    def __init__(self, path: Path | RemoteFile, error: RequestFailed) -> None:
        self._failure = Failure(printable(str(path)), printable(str(path)), error, whole=True)

    def events(self, seen: Seen) -> Iterator[Event]:
        """The failure."""
        del seen
        yield self._failure

    def count(self) -> Iterator[object]:
        """The failure."""
        yield self._failure
