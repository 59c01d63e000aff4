"""Where the pictures of a table's paths are: below one folder, here or in a store, and nowhere else."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from clipfleet.index.files import MAX_FILE_BYTES, printable
from clipfleet.index.sources.far import FarCalls
from clipfleet.index.sources.remote import RemoteFile, is_remote, stored
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from clipfleet.index.sources.item import Stored
    from clipfleet.index.sources.rows import Row

__all__ = ["FolderPen", "Pen", "Penned", "StorePen"]

_ROWS_AHEAD: Final = 64


@dataclass(frozen=True, slots=True)
class Penned:
    """A picture of a table.

    Attributes:
        picture: the file, not read yet.
        inside: its path below the folder.
        where: what it is called, the same for the same file.
        size: in bytes, where that is known.
    """

    picture: Path | Stored
    inside: str
    where: str
    size: int | None = None


class Pen(Protocol):
    """A folder out of which no path of a table leads, links included: tables come from other people."""

    def ahead(self, rows: Iterable[Row], path_of: Callable[[Row], object]) -> Iterator[Row]:
        """The same rows; what will be asked of each may be looked up before."""

    def find(self, value: object) -> Penned:
        """What a path stands for.

        Raises:
            RequestFailed: ``bad_request`` for no path, ``fetch_forbidden`` for one that leads out; ``fetch_failed`` and
                ``too_large`` for a file of a store.
        """


class FolderPen:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._given = os.path.abspath(root)  # noqa: PTH100 - Path.absolute keeps the dots

    def ahead(self, rows: Iterable[Row], path_of: Callable[[Row], object]) -> Iterator[Row]:
        """The rows: nothing is far."""
        del path_of
        yield from rows

    def find(self, value: object) -> Penned:
        """See ``Pen``."""
        wanted = os.path.normpath(os.path.join(self._given, _path(value)))  # noqa: PTH118 - a Path costs ten times as much
        real = os.path.realpath(wanted)
        if os.path.commonpath([real, self._root]) != self._root:
            raise _leads_out()
        below = os.path.relpath(wanted, self._given)
        if below.startswith(os.pardir):
            below = os.path.relpath(real, self._root)
        return Penned(Path(real), printable(Path(below).as_posix()), real)


class StorePen:
    """The folder of a table in a store; there are no links, and a path may be an address in that folder."""

    def __init__(self, table: RemoteFile) -> None:
        self._fs = table.fs
        self._root = table.path.rpartition("/")[0]
        self._known: dict[str, Future[Penned]] = {}

    def ahead(self, rows: Iterable[Row], path_of: Callable[[Row], object]) -> Iterator[Row]:
        """The rows; the store is asked about several of their files at once."""
        kept: list[Row] = []
        with FarCalls() as calls:
            try:
                for row in rows:
                    kept.append(row)
                    if len(kept) == _ROWS_AHEAD:
                        yield from self._looked_up(kept, path_of, calls)
                        kept = []
            except RequestFailed:
                # The table breaks off: those before that are as good as ever.
                yield from self._looked_up(kept, path_of, calls)
                raise
            yield from self._looked_up(kept, path_of, calls)

    def find(self, value: object) -> Penned:
        """See ``Pen``."""
        inside = self._inside(value)
        known = self._known.get(inside)
        return self._look(inside) if known is None else known.result()

    def _looked_up(self, rows: Iterable[Row], path_of: Callable[[Row], object], calls: FarCalls) -> Iterator[Row]:
        self._known = {}
        rows = tuple(rows)
        for row in rows:
            try:
                inside = self._inside(path_of(row))
            except RequestFailed:
                continue  # which the row's own turn will tell
            if inside not in self._known:
                self._known[inside] = calls.begin(partial(self._look, inside))
        yield from rows

    def _inside(self, value: object) -> str:
        text = _path(value)
        if is_remote(text):
            text = str(self._fs._strip_protocol(text))  # noqa: SLF001 - fsspec's own name for what its classes override
            if not text.startswith(f"{self._root}/"):
                raise _leads_out()
            text = text.removeprefix(f"{self._root}/")
        inside = posixpath.normpath(text)
        if inside.startswith(("/", "..")) or inside == ".":
            raise _leads_out()
        return inside

    def _look(self, inside: str) -> Penned:
        file = RemoteFile(f"{self._root}/{inside}", self._fs)
        info = file.info()
        size = info.get("size")
        if isinstance(size, int) and size > MAX_FILE_BYTES:
            raise error_for(ErrorCode.TOO_LARGE, f"{size:,} bytes")
        return Penned(stored(file, info), printable(inside), file.path, size)


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise error_for(ErrorCode.BAD_REQUEST, "the row names no file")
    return value.strip()


def _leads_out() -> RequestFailed:
    return error_for(ErrorCode.FETCH_FORBIDDEN, "the path leads out of its folder (see --path-root)")
