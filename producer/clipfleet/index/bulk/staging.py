"""Where files lie for Milvus to read: its own bucket, or a folder that its machine sees."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from clipfleet.index.sources.remote import is_remote, text_of, to_store
from clipfleet.schemas.errors import ClipfleetError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Staging", "StagingError", "open_staging"]


class StagingError(ClipfleetError):
    """The place cannot be read or written."""


_AT_ONCE: Final = 8 << 20


class Staging(Protocol):
    """Files by their names, in one place."""

    def seen(self, name: str) -> str:
        """What Milvus calls a file."""

    def put(self, name: str, file: IO[bytes]) -> None:
        """Bring a file there, read from where it stands.

        Raises:
            StagingError: it cannot be written.
        """

    def read(self, name: str) -> bytes | None:
        """What a small file holds; None: there is none.

        Raises:
            StagingError: it cannot be read.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all.

        Raises:
            StagingError: it cannot be written.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it is there and can be: at worst it is left."""


def open_staging(place: str, seen_as: str | None = None) -> Staging:
    """A place by its name.

    Args:
        place: a folder of this machine that Milvus' machine has too; or ``s3://BUCKET/FOLDER`` (any address of fsspec)
            in the bucket that Milvus keeps its data in.
        seen_as: what Milvus calls it, where that is something else: the folder inside its container. By default the
            folder's own absolute path, and the path inside the bucket.

    Raises:
        SourceError: a package is missing, or the store cannot be reached.
        StagingError: the folder is not there.
    """
    if is_remote(place):
        fs, path = to_store(place)
        inside = path.strip("/").partition("/")[2] if seen_as is None else seen_as
        return _StoreStaging(fs, path.rstrip("/"), inside.rstrip("/"))
    folder = Path(place)
    if not folder.is_dir():
        raise StagingError(f"{place}: no such folder")
    return _FolderStaging(folder, str(folder.absolute()) if seen_as is None else seen_as.rstrip("/"))


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


class _FolderStaging:
    """A folder."""

    def __init__(self, folder: Path, seen_as: str) -> None:
        self._folder = folder
        self._seen_as = seen_as

    def __str__(self) -> str:
        return str(self._folder)

    def seen(self, name: str) -> str:
        return _joined(self._seen_as, name)

    def put(self, name: str, file: IO[bytes]) -> None:
        def copy(hidden: Path) -> None:
            with hidden.open("wb") as out:
                shutil.copyfileobj(file, out, _AT_ONCE)

        self._settled(name, copy)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StagingError(f"{self._folder / name}: cannot be read: {error.strerror}") from None

    def write(self, name: str, data: bytes) -> None:
        def write(hidden: Path) -> None:
            hidden.write_bytes(data)

        self._settled(name, write)

    def remove(self, name: str) -> None:
        with suppress(OSError):
            (self._folder / name).unlink()

    def _settled(self, name: str, fill: Callable[[Path], None]) -> None:
        hidden, path = self._folder / f".{name}.part", self._folder / name
        try:
            fill(hidden)
            with hidden.open("rb") as file:
                os.fsync(file.fileno())
            hidden.replace(path)
        except OSError as error:
            hidden.unlink(missing_ok=True)
            raise StagingError(f"{path}: cannot be written: {error.strerror}") from None


class _StoreStaging:
    """A folder in a store of fsspec; its writes are whole by themselves."""

    def __init__(self, fs: Any, path: str, seen_as: str) -> None:
        self._fs = fs
        self._path = path
        self._seen_as = seen_as

    def __str__(self) -> str:
        return str(self._fs.unstrip_protocol(self._path))

    def seen(self, name: str) -> str:
        return _joined(self._seen_as, name)

    def put(self, name: str, file: IO[bytes]) -> None:
        def copy() -> None:
            with self._fs.open(f"{self._path}/{name}", "wb") as out:
                shutil.copyfileobj(file, out, _AT_ONCE)

        self._guarded("written", copy)

    def read(self, name: str) -> bytes | None:
        try:
            data: bytes = self._guarded("read", lambda: self._fs.cat_file(f"{self._path}/{name}"))
        except FileNotFoundError:
            return None
        return data

    def write(self, name: str, data: bytes) -> None:
        self._guarded("written", lambda: self._fs.pipe_file(f"{self._path}/{name}", data))

    def remove(self, name: str) -> None:
        with suppress(StagingError, FileNotFoundError):
            self._guarded("removed", lambda: self._fs.rm_file(f"{self._path}/{name}"))

    def _guarded(self, done: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FileNotFoundError:
            if done == "written":
                raise StagingError(f"{self}: cannot be written: there is no such bucket") from None
            raise
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            raise StagingError(f"{self}: cannot be {done}: {text_of(error)}") from None
