"""Pictures, shards and zips in stores that fsspec knows: ``s3://bucket/folder``, ``gs://…``, ``memory://…``.

https://filesystem-spec.readthedocs.io; each kind of store is a package of its own (s3fs for ``s3://``). Credentials and
endpoints are those packages' matter: AWS' own variables and files, for one.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.files import MAX_FILE_BYTES, printable
from clipfleet.index.sources.braces import expand
from clipfleet.index.sources.item import Failure, Item, Skip, SourceError, Stored
from clipfleet.index.sources.seen import Met
from clipfleet.index.walk import has_suffix
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clipfleet.index.sources.item import Event
    from clipfleet.index.sources.seen import Seen

__all__ = ["RemoteFile", "RemoteFolder", "is_remote", "remote_files", "stored", "text_of", "to_store"]

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_MAGIC: Final = re.compile(r"[*?\[]")
_READ_AHEAD: Final = 4 << 20
# What a store tells of a file that changes when its content does.
_VERSIONS: Final = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created")


def is_remote(text: str) -> bool:
    """Whether a source is named by an address."""
    return _URL.match(text) is not None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a store.

    Attributes:
        path: as the store has it.
        fs: the store.
    """

    path: str
    fs: Any

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.rpartition("/")[2]

    @property
    def is_on_disk(self) -> bool:
        """Whether it is a file of this machine after all: ``file://``."""
        protocol = self.fs.protocol
        return "file" in ([protocol] if isinstance(protocol, str) else protocol)

    def __str__(self) -> str:
        """Its address, which holds no secrets: these are none of a path's parts."""
        return str(self.fs.unstrip_protocol(self.path))

    def info(self) -> dict[str, Any]:
        """What the store tells of it.

        Raises:
            RequestFailed: ``fetch_failed``: it cannot be asked, or there is no such file.
        """
        try:
            info: dict[str, Any] = self.fs.info(self.path)
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            raise _unreachable(error) from None
        if info.get("type") != "file":
            raise error_for(ErrorCode.UNSUPPORTED_MEDIA, "not a file")
        return info

    def open(self) -> io.BufferedReader:
        """Open it for reading.

        Raises:
            RequestFailed: ``fetch_failed``: it cannot be.
        """
        try:
            return io.BufferedReader(_Raw(self.fs.open(self.path, "rb", block_size=_READ_AHEAD)), _READ_AHEAD)
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            raise _unreachable(error) from None

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            RequestFailed: ``fetch_failed``, or ``too_large`` above 64 MiB.
        """
        try:
            data = bytes(self.fs.cat_file(self.path, end=MAX_FILE_BYTES + 1))
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            raise _unreachable(error) from None
        if len(data) > MAX_FILE_BYTES:
            raise error_for(ErrorCode.TOO_LARGE, f"more than {MAX_FILE_BYTES:,} bytes")
        return data


class _Raw(io.RawIOBase):
    """A store's file as ``io`` has them, whose only errors are ``OSError``."""

    def __init__(self, file: Any) -> None:
        self._remote = file

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer."""
        data = self._guarded(self._remote.read, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere."""
        return int(self._guarded(self._remote.seek, offset, whence))

    def tell(self) -> int:
        """Where it is."""
        return int(self._remote.tell())

    def close(self) -> None:
        """Close both."""
        self._remote.close()
        super().close()

    @staticmethod
    def _guarded(call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except OSError:
            raise
        except Exception as error:
            raise OSError(str(error)) from error


class RemoteFolder:
    """The pictures in a folder of a store and below it, or that a pattern stands for; or a single one."""

    def __init__(self, url: str) -> None:
        """Look whether it is there.

        Raises:
            FileNotFoundError: it is not.
            SourceError: it cannot be asked; a package is missing.
        """
        self._name = url
        self._fs, path = to_store(url)
        magic = _MAGIC.search(path)
        self._pattern = path if magic else ""
        fixed = path[: magic.start()] if magic else path
        self._root = fixed.rpartition("/")[0] if magic else path.rstrip("/")
        self._single = not magic and _info(self._fs, url, path)["type"] == "file"

    @property
    def about(self) -> str:
        """Which kind it was taken for."""
        kind = "a file" if self._single else "a pattern" if self._pattern else "a folder"
        return f"{self._name}: {kind} in a store, which is read here"

    def events(self, seen: Seen) -> Iterator[Event]:
        """A picture for each file that is one by its name; a folder's names are in memory, one folder at a time."""
        skipped = 0
        try:
            for path, info in self._files():
                name = path.rpartition("/")[2]
                if not self._single and not has_suffix(name):
                    skipped += 1
                    continue
                yield self._event(RemoteFile(path, self._fs), info, seen)
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            yield Failure(self._name, self._name, _unreachable(error), whole=True)
        if skipped:
            yield Skip(Skip.OTHER, skipped)

    def count(self) -> Iterator[object]:
        """Nothing.

        Raises:
            OSError: always: it would be listed twice.
        """
        raise OSError("a store's files are not counted beforehand")

    def _files(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._single:
            yield self._root, self._fs.info(self._root)
            return
        if self._pattern:
            for path, info in sorted(self._fs.glob(self._pattern, detail=True).items()):
                if info["type"] == "file":
                    yield path, info
            return
        for folder, folders, files in self._fs.walk(self._root, detail=True, on_error="raise"):
            for hidden in [name for name in folders if name.startswith(".")]:
                del folders[hidden]
            for name in sorted(files):
                if name and not name.startswith("."):
                    yield f"{folder.rstrip('/')}/{name}", files[name]

    def _event(self, file: RemoteFile, info: dict[str, Any], seen: Seen) -> Event:
        inside = file.path.removeprefix(self._root).lstrip("/") or file.name
        id_, label = printable(inside), printable(str(file))
        size = info.get("size")
        if isinstance(size, int) and size > MAX_FILE_BYTES:
            return Failure(id_, label, error_for(ErrorCode.TOO_LARGE, f"{size:,} bytes"))
        match seen.add(id_, label.encode()):
            case Met.SAME:
                return Skip(Skip.DUPLICATE)
            case Met.TAKEN:
                return Failure(id_, label, error_for(ErrorCode.BAD_REQUEST, "another picture has the same id"))
        place = {"path": id_, "name": printable(file.name)}
        return Item(id_, label, stored(file, info), place, size)


def stored(file: RemoteFile, info: Mapping[str, Any]) -> Stored:
    """A file as a picture, by what its store tells of it."""
    version = " ".join(str(info[key]) for key in _VERSIONS if key in info)
    return Stored(file.read, f"{info.get('size')} {version}", far=True)


def remote_files(text: str, *, there: bool = False) -> list[RemoteFile]:
    """The files that a name with braces, or a pattern, stands for; for shards, zips and tables, which are few.

    Args:
        text: the name.
        there: whether each one that is named must be there.

    Raises:
        FileNotFoundError: a pattern stands for none; with ``there``, a file is not there.
        SourceError: the store cannot be asked; a package is missing; a range stands for too much.
    """
    found: list[RemoteFile] = []
    for url in _expanded(text):
        fs, path = to_store(url)
        if not _MAGIC.search(path):
            if there:
                _info(fs, url, path)
            found.append(RemoteFile(path, fs))
            continue
        try:
            found += [RemoteFile(each, fs) for each in sorted(fs.glob(path))]
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            raise SourceError(f"{url}: {text_of(error)}") from None
    if not found:
        raise FileNotFoundError(text)
    return found


def _expanded(text: str) -> list[str]:
    try:
        return list(expand(text))
    except ValueError as error:
        raise SourceError(str(error)) from None


def to_store(url: str) -> tuple[Any, str]:
    """The store of an address, and the path in it.

    Raises:
        SourceError: a package is missing, or it is no address.
    """
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - of an extra
    except ImportError:
        raise SourceError(f'{url} needs fsspec: pip install "clipfleet[remote]"') from None
    try:
        # A store's listing, once made, would be kept: of millions of names.
        fs, path = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        web = " (or list addresses in a table: a urls.csv with a column url)" if url.startswith("http") else ""
        raise SourceError(f"{url}: {text_of(error)}{web}") from None
    except Exception as error:  # noqa: BLE001 - each store has errors of its own
        raise SourceError(f"{url}: {text_of(error)}") from None
    return fs, str(path)


def _info(fs: Any, url: str, path: str) -> dict[str, Any]:
    try:
        info: dict[str, Any] = fs.info(path)
    except FileNotFoundError:
        raise FileNotFoundError(url) from None
    except Exception as error:  # noqa: BLE001 - each store has errors of its own
        raise SourceError(f"{url}: {text_of(error)}") from None
    return info


def text_of(error: Exception) -> str:
    """What a store's error says, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _unreachable(error: Exception) -> RequestFailed:
    if isinstance(error, RequestFailed):
        return error
    return error_for(ErrorCode.FETCH_FAILED, f"cannot be read: {text_of(error)}", retryable=False)
