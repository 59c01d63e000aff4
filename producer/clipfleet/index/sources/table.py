"""Tables of pictures: a column of addresses or of files, and what else the rows say as metadata."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.files import printable
from clipfleet.index.sources.item import Failure, Hides, Item, Skip, SourceError
from clipfleet.index.sources.pens import FolderPen, StorePen
from clipfleet.index.sources.remote import RemoteFile
from clipfleet.index.sources.rows import ROW_READERS
from clipfleet.index.sources.seen import Met
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from clipfleet.index.sources.item import Event
    from clipfleet.index.sources.pens import Pen
    from clipfleet.index.sources.rows import Row
    from clipfleet.index.sources.seen import Seen

__all__ = ["TABLE_SUFFIXES", "Columns", "Table"]

TABLE_SUFFIXES: Final = tuple(ROW_READERS)
# What such columns are called, most telling first; case does not matter.
_URL_NAMES: Final = ("url", "image_url", "img_url", "uri")
_PATH_NAMES: Final = (
    "path",
    "image_path",
    "img_path",
    "filepath",
    "file_path",
    "filename",
    "file_name",
    "file",
    "image",
)
_ID_NAMES: Final = ("id", "image_id", "img_id", "key", "uid", "uuid")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold what; None = by their names.

    Attributes:
        url: addresses of pictures, which workers fetch.
        path: files of pictures, which are read here.
        id: the rows' ids.
        root: paths are relative to this folder of this machine and never lead out of it; None = the table's own folder,
            also in a store.
    """

    url: str | None = None
    path: str | None = None
    id: str | None = None
    root: Path | None = None


class Table:
    """One table.

    Attributes:
        url: the column of addresses; None where there is one of paths.
        path: the column of paths; None where there is one of addresses.
        id: the column of ids; None where the address or the path is the id.
    """

    def __init__(self, path: Path | RemoteFile, columns: Columns) -> None:
        """Find out which columns are which.

        Raises:
            RequestFailed: it cannot be read.
            SourceError: no column of pictures, or more than one; one that was asked for is not there.
        """
        self._rows = ROW_READERS[posixpath.splitext(path.name)[1].lower()](path)
        self._label = printable(str(path))
        self.url, self.path = _pictures(self._rows.names, columns, self._label)
        self.id = _column(self._rows.names, columns.id, _ID_NAMES, self._label)
        self._pen = _pen(path, columns.root)

    @property
    def about(self) -> str:
        """Which kind it was taken for, and which column for what."""
        where = f"addresses in column {self.url!r}" if self.url else f"paths in column {self.path!r}"
        ids = f"column {self.id!r}" if self.id else "the address" if self.url else "the path"
        others = [name for name in self._rows.names if name not in {self.url, self.path, self.id}]
        rest = f", metadata {', '.join(map(repr, others[:8]))}{' …' if len(others) > 8 else ''}" if others else ""
        return f"{self._label}: {self._rows.kind}, {where}, id is {ids}{rest}"

    def events(self, seen: Seen) -> Iterator[Event]:
        """A picture for each row that names one."""
        try:
            for row in self._pen.ahead(self._rows, lambda row: row.values.get(self.path or "")):
                yield self._event(row, seen)
        except RequestFailed as error:
            yield Failure(self._label, self._label, error, whole=True)

    def count(self) -> Iterator[object]:
        """Each row."""
        return self._rows.count()

    def _event(self, row: Row, seen: Seen) -> Event:
        label = id_ = f"{self._label}:{row.number}"
        hides = Hides.ANY
        try:
            if row.error is not None:
                raise row.error
            if self.id is not None:
                id_, hides = _id(row.values.get(self.id), self.id), Hides.ITSELF
            item, reference = self._item(id_ if self.id is not None else None, label, row.values)
        except RequestFailed as error:
            return Failure(id_, label, error, hides=hides)
        match seen.add(item.id, reference.encode("utf-8", "surrogateescape")):
            case Met.SAME:
                return Skip(Skip.DUPLICATE)
            case Met.TAKEN:
                return Failure(item.id, label, error_for(ErrorCode.BAD_REQUEST, "another picture has the same id"))
        return item

    def _item(self, id_: str | None, label: str, values: dict[str, Any]) -> tuple[Item, str]:
        """An item, and which picture it is."""
        metadata = {name: _clean(value) for name, value in values.items() if name != self.id}
        if self.url is not None:
            from clipfleet.producer.requests import Url  # noqa: PLC0415  so that folders need no client

            url = _address(values.get(self.url))
            return Item(url if id_ is None else id_, label, Url(url), metadata | {self.url: url}), url
        found = self._pen.find(values.get(self.path or ""))
        return Item(found.inside if id_ is None else id_, label, found.picture, metadata, found.size), found.where


def _pen(table: Path | RemoteFile, root: Path | None) -> Pen:
    if root is not None:
        return FolderPen(root)
    return StorePen(table) if isinstance(table, RemoteFile) else FolderPen(table.parent)


def _pictures(names: Sequence[str], columns: Columns, label: str) -> tuple[str | None, str | None]:
    if columns.url is not None and columns.path is not None:
        raise SourceError("--url-column and --path-column: give one of them")
    url = path = None
    if columns.path is None:
        url = _column(names, columns.url, _URL_NAMES, label)
    if columns.url is None:
        path = _column(names, columns.path, _PATH_NAMES, label)
    given = ", ".join(map(repr, names[:12])) + (" …" if len(names) > 12 else "")
    if url is not None and path is not None:
        raise SourceError(
            f"{label}: pictures may be in {url!r} or in {path!r}: say which with --url-column or --path-column"
        )
    if url is None and path is None:
        raise SourceError(
            f"{label}: none of its columns is named like addresses or paths of pictures: {given};"
            " say which one with --url-column or --path-column (a first line that is no header must get one)"
        )
    return url, path


def _column(names: Sequence[str], asked: str | None, usual: Sequence[str], label: str) -> str | None:
    if asked is not None:
        if asked not in names:
            raise SourceError(f"{label}: has no column {asked!r}; it has {', '.join(map(repr, names[:12]))}")
        return asked
    by_low = {name.lower(): name for name in reversed(names)}
    return next((by_low[name] for name in usual if name in by_low), None)


def _address(value: object) -> str:
    """What can be sent to a worker as an address; whether it may be fetched is the worker's to say.

    Raises:
        RequestFailed: ``bad_request``, or ``fetch_forbidden`` for another scheme than http and https.
    """
    url = value.strip() if isinstance(value, str) else ""
    if not url:
        raise error_for(ErrorCode.BAD_REQUEST, "the row has no address")
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise error_for(ErrorCode.BAD_REQUEST, "an address must be absolute, such as https://example.com/a.jpg")
    if scheme[1].lower() not in ("http", "https"):
        raise error_for(ErrorCode.FETCH_FORBIDDEN, "only http and https are fetched")
    if printable(url) != url:
        raise error_for(ErrorCode.BAD_REQUEST, "the address is not UTF-8")
    return url


def _id(value: object, column: str) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.strip():
        raise error_for(ErrorCode.BAD_REQUEST, f"column {column!r} holds no id, which is text or a whole number")
    return printable(text.strip())


def _clean(value: object) -> object:
    return printable(value) if isinstance(value, str) else value
