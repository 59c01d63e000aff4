"""Part files read back: what ``index --to parquet`` and ``export --to parquet`` have left in a folder."""

from __future__ import annotations

import fcntl
import json
from contextlib import contextmanager
from hashlib import blake2b, file_digest
from typing import IO, TYPE_CHECKING, Any, Final, Self

from clipfleet.index.sinks.columns import arrow
from clipfleet.index.sinks.parts import ABOUT, LOCK
from clipfleet.index.sinks.sink import SinkError, SinkRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Written"]

_ROWS_AT_ONCE: Final = 512


class Written:
    """The parquet parts of one folder, held so that nobody writes into it meanwhile; a context manager.

    Attributes:
        folder: where they are.
        model: the fingerprint of the model whose vectors they are.
        dimension: of the vectors.
        rows: how many rows all parts have.
    """

    def __init__(self, folder: Path) -> None:
        """Read what the folder says of itself.

        Raises:
            SinkError: it is no such folder, it is being written, or a part is missing or broken.
        """
        self.folder = folder
        about = _about(folder)
        self.model = str(about["model"])
        self.dimension = int(about["dimension"])
        self._lock: IO[bytes] | None = None
        self._parts = _parts(folder)
        self.rows = sum(self._count(path) for path in self._parts)

    def __enter__(self) -> Self:
        try:
            self._lock = (self.folder / LOCK).open("rb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass  # a copy without hidden files: nobody writes into it
        except BlockingIOError:
            self.__exit__()
            raise SinkError(f"{self.folder} is in use by another program: wait for its end") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def ids(self) -> Iterator[list[str]]:
        """The ids of all rows, in the order written, some at a time."""
        for batch in self._batches(["id"], 0):
            yield _texts(batch, "id")

    def read(self, begin: int = 0) -> Iterator[list[SinkRow]]:
        """The rows from ``begin`` on, in the order written, some at a time; vectors are float32 in any case."""
        for batch in self._batches(["id", "vector", "metadata"], begin):
            vectors = self._vectors(batch)
            metadata = [self._metadata(text) for text in _texts(batch, "metadata")]
            yield [
                SinkRow(id_, vector, said)
                for id_, vector, said in zip(_texts(batch, "id"), vectors, metadata, strict=True)
            ]

    def digest(self) -> str:
        """The same for the same parts, to their last byte.

        Raises:
            SinkError: a part cannot be read.
        """
        whole = blake2b(digest_size=16)
        for path in self._parts:
            try:
                with path.open("rb") as file:
                    whole.update(file_digest(file, lambda: blake2b(digest_size=16)).digest())
            except OSError as error:
                raise SinkError(f"{path}: cannot be read: {error.strerror or error}") from None
        return whole.hexdigest()

    def _batches(self, columns: list[str], begin: int) -> Iterator[Any]:
        for path in self._parts:
            count = self._count(path)
            if begin >= count:
                begin -= count
                continue
            with _reading(path) as file:
                if missing := [name for name in columns if name not in file.schema_arrow.names]:
                    raise SinkError(f"{path}: no whole part: it has no column {missing[0]!r}")
                for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
                    left = max(0, batch.num_rows - begin)
                    if left:
                        yield batch.slice(batch.num_rows - left)
                    begin = max(0, begin - batch.num_rows)

    def _count(self, path: Path) -> int:
        with _reading(path) as file:
            return int(file.metadata.num_rows)

    def _vectors(self, batch: Any) -> Any:
        import numpy as np  # noqa: PLC0415 - for whoever reads files, and nobody else

        flat = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
        if len(flat) != batch.num_rows * self.dimension:
            raise SinkError(f"{self.folder}: not all vectors have {self.dimension} dimensions")
        return np.ascontiguousarray(flat.reshape(batch.num_rows, self.dimension), np.float32)

    def _metadata(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise SinkError(f"{self.folder}: metadata {text!r:.60} is no JSON object")
        return value


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["to"] == "parquet" and about["model"] and int(about["dimension"]) > 0:
            return dict(about)
    except FileNotFoundError:
        what = "is not there" if not folder.exists() else f"holds no {ABOUT}"
        raise SinkError(f"{folder} {what}: a folder of 'clipfleet index --to parquet' is needed") from None
    except OSError as error:
        raise SinkError(f"{folder}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise SinkError(f"{folder} holds no parts of 'clipfleet index --to parquet' (or export): see its {ABOUT}")


def _parts(folder: Path) -> list[Path]:
    found = {path.name: path for path in folder.glob("part_*.parquet")}
    parts = [folder / f"part_{number}.parquet" for number in range(len(found))]
    if missing := [path.name for path in parts if path.name not in found]:
        raise SinkError(f"{folder}: {missing[0]} is not there, though {', '.join(sorted(found)[-2:])} is")
    return parts


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    pa, pq = arrow()
    try:
        # Without buffering ahead: memory follows the batch, not the row group.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise SinkError(f"{path}: no whole part: {str(error)[:200]}") from None


def _texts(batch: Any, column: str) -> list[str]:
    values: list[str | None] = batch.column(column).to_pylist()
    return [value or "" for value in values]
