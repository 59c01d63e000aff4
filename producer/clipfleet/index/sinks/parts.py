"""Part files in a folder: each part appears at once, and only one program adds to a folder.

A part's files are written under names that nothing reads (``.img_emb_3.npy.part``), synced, and renamed one after the
other; the last of them makes the part whole. Killed at any point, the folder holds whole parts ``0`` to ``n - 1``, and
at most an orphan that the next run replaces: it was never part of anything.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

from clipfleet.index.sinks.sink import Dtype, SinkError, SinkRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["ABOUT", "LOCK", "FolderSink", "Format"]

# Not among the part files, which other programs find by their suffixes.
ABOUT: Final = "clipfleet.json"
LOCK: Final = ".clipfleet.lock"


class Format(Protocol):
    """How one part is spelled."""

    name: str
    dtype: Dtype

    def files(self, number: int) -> tuple[str, ...]:
        """A part's files, relative to the folder; the last one makes it whole."""

    def write(self, paths: Sequence[Path], rows: Sequence[SinkRow], vectors: Any) -> None:
        """Write a part's files; ``vectors`` is an array, shape ``[rows, dimension]``, of ``dtype``."""

    def begin(self, whole: Path | None) -> None:
        """Learn from the last part's last file what the next ones must be like."""

    def vectors(self, paths: Sequence[Path]) -> Any:
        """The vectors in a whole part's files, in their order: an array, shape ``[rows, dimension]``, of ``dtype``."""

    def ids(self, whole: Path) -> list[str]:
        """The ids in a part, from its last file, in their order."""


class FolderSink:
    """A ``Sink`` of numbered part files; a context manager, whose end writes the last part.

    Attributes:
        parts: how many whole parts there are.
    """

    def __init__(self, folder: Path, form: Format, *, rows_per_part: int, origin: str = "") -> None:
        self.parts = 0
        self._folder = folder
        self._format = form
        self._rows_per_part = rows_per_part
        self._origin = origin
        self._rows: list[SinkRow] = []
        self._vectors: list[Any] = []
        self._about: dict[str, Any] | None = None
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        # Also after an error: what has been computed is worth as much as before.
        self.close()

    def open(self) -> None:
        """Begin behind the parts that are there.

        Raises:
            SinkError: it cannot be written, another program is writing it, or it holds something else.
        """
        try:
            for name in self._format.files(0):
                (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            while self._path(self.parts).exists():
                self.parts += 1
            self._about = self._read_about()
            self._check_order()
            for name in self._format.files(self.parts):
                _hidden(self._folder / name).unlink(missing_ok=True)
            self._format.begin(self._path(self.parts - 1) if self.parts else None)
        except OSError as error:
            self._release()
            raise SinkError(f"{self._folder}: cannot be written: {error.strerror or error}") from None
        except BaseException:
            self._release()
            raise

    def held(self, begin: int = 0) -> Iterator[str]:
        """The ids in all whole parts from ``begin`` on, in the order written."""
        for number in range(begin, self.parts):
            yield from self._format.ids(self._path(number))

    def rows(self) -> Iterator[tuple[str, Any]]:
        """The id and the vector of each row of the whole parts there are now, in the order written; a part at a time.

        Raises:
            SinkError: a part cannot be read.
        """
        for number in range(self.parts):
            paths = [self._folder / name for name in self._format.files(number)]
            try:
                ids, vectors = self._format.ids(paths[-1]), self._format.vectors(paths)
                yield from zip(ids, vectors, strict=True)
            except (OSError, ValueError) as error:
                raise SinkError(f"{paths[0]}: cannot be read: {error}") from None

    def last(self) -> str | None:
        """The id of the last row of the last whole part."""
        return self._format.ids(self._path(self.parts - 1))[-1] if self.parts else None

    def write(self, rows: Sequence[SinkRow], *, model: str) -> list[str]:
        """Take rows; see ``Sink.write``."""
        import numpy as np  # noqa: PLC0415 - for whoever writes files, and nobody else

        done: list[str] = []
        for row in rows:
            vector = np.frombuffer(row.vector, np.float32) if not isinstance(row.vector, np.ndarray) else row.vector
            if vector.ndim != 1 or vector.dtype != np.float32:
                raise SinkError(f"{row.id}: a vector is one row of float32, not {vector.dtype} {vector.shape}")
            self._belongs(model, len(vector))
            self._rows.append(row)
            self._vectors.append(vector.astype(self._format.dtype))
            if len(self._rows) >= self._rows_per_part:
                done += self._finish()
        return done

    def close(self) -> list[str]:
        """Write the last part and let others write; see ``Sink.close``."""
        try:
            return self._finish() if self._rows else []
        finally:
            self._release()

    def _path(self, number: int) -> Path:
        return self._folder / self._format.files(number)[-1]

    def _finish(self) -> list[str]:
        import numpy as np  # noqa: PLC0415

        paths = [self._folder / name for name in self._format.files(self.parts)]
        try:
            self._format.write([_hidden(path) for path in paths], self._rows, np.stack(self._vectors))
            for path in paths:
                _settle(_hidden(path), path)
        except OSError as error:
            raise SinkError(f"{paths[-1]}: cannot be written: {error.strerror or error}") from None
        done = [row.id for row in self._rows]
        self._rows, self._vectors = [], []
        self.parts += 1
        return done

    def _belongs(self, model: str, dimension: int) -> None:
        """Vectors of two models, or of two lengths, never share a folder."""
        told = self._said() | {"model": model, "dimension": dimension}
        if self._about is None:
            path = self._folder / ABOUT
            try:
                _hidden(path).write_text(json.dumps(told) + "\n", encoding="utf-8")
                _settle(_hidden(path), path)
            except OSError as error:
                raise SinkError(f"{path}: cannot be written: {error.strerror or error}") from None
            self._about = told
        elif self._about != told:
            raise SinkError(_differ(self._folder, self._about, told))

    def _said(self) -> dict[str, Any]:
        return {"v": 1, "to": self._format.name, "dtype": self._format.dtype, "origin": self._origin}

    def _read_about(self) -> dict[str, Any] | None:
        try:
            about = json.loads((self._folder / ABOUT).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self.parts:
                raise SinkError(f"{self._folder} holds part files that clipfleet has not written") from None
            return None
        except ValueError:
            about = None
        said = self._said()
        if not isinstance(about, dict) or {key: about.get(key) for key in said} != said:
            raise SinkError(_differ(self._folder, about if isinstance(about, dict) else {}, said))
        return about

    def _check_order(self) -> None:
        """Whoever goes on behind a gap overwrites what stands behind it."""
        last = self._path(0)
        if sum(1 for _ in last.parent.glob(last.name.replace("0", "[0-9]*"))) > self.parts:
            raise SinkError(f"{self._folder}: part {self.parts} is not there, though later ones are: put it back")

    def _locked(self) -> IO[bytes]:
        file = (self._folder / LOCK).open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise SinkError(f"{self._folder} is being written by another program: give each its own folder") from None
        return file

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _settle(written: Path, path: Path) -> None:
    """Give a file its name once its bytes are on the disk; and the name, too."""
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _differ(folder: Path, held: dict[str, Any], given: dict[str, Any]) -> str:
    keys = [key for key in given if held.get(key) != given[key]]
    what = ", ".join(f"{key} {held.get(key)!r} and not {given[key]!r}" for key in keys)
    return f"{folder} holds vectors of {what}: give each its own folder"
