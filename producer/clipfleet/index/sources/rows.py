"""The rows of tables: CSV and TSV, JSON lines, parquet; each read once, one row at a time."""

from __future__ import annotations

import csv
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, Protocol

from clipfleet.index.files import printable, unreadable
from clipfleet.index.sources.item import SourceError, opened
from clipfleet.index.sources.json_text import plain, read_object
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.index.sources.item import Place

__all__ = ["ROW_READERS", "CsvRows", "JsonRows", "ParquetRows", "Row", "Rows"]

# Keeps a file without line ends, or with one quote too many, from filling memory. The csv module has a limit of its
# own for one field, 128 KiB, which counts across lines.
_MAX_LINE: Final = 1 << 20
_DELIMITERS: Final = ",;\t|"


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        number: the line on which it begins, or which row it is in a format without lines; from 1.
        values: by column.
        error: why there are no values; None when there are.
    """

    number: int
    values: dict[str, Any]
    error: RequestFailed | None = None


class _TooLongError(Exception):
    """A line that is not read to its end into memory."""


class _Lines:
    """The lines of a text file, none longer than a megabyte; a longer one is passed over and raises."""

    def __init__(self, file: TextIOWrapper) -> None:
        self.number = 0
        self._file = file

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._file.readline(_MAX_LINE)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) < _MAX_LINE or line.endswith(("\n", "\r")):
            return line
        while (more := self._file.readline(_MAX_LINE)) and not more.endswith(("\n", "\r")):
            pass
        raise _TooLongError


@contextmanager
def _text(path: Path | Place) -> Iterator[TextIOWrapper]:
    try:
        with opened(path) as file:
            if file.peek(2)[:2] in {b"\xff\xfe", b"\xfe\xff"}:
                raise SourceError(f"{path}: is UTF-16; save it as UTF-8")
            # Bytes outside UTF-8 are kept as they are: they may be a file's name.
            with TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
                yield text
    except OSError as error:
        raise unreadable(error) from None


class Rows(Protocol):
    """The rows of one table.

    Attributes:
        kind: what it is, for people.
        names: the columns.
    """

    kind: str
    names: list[str]

    def __iter__(self) -> Iterator[Row]:
        """Each row, from the first one."""

    def count(self) -> Iterator[object]:
        """Something for each row."""


class CsvRows:
    """Comma, semicolon, tab or bar separated values with a header, quoted as RFC 4180 has it.

    Attributes:
        kind: what it is, for people.
        names: the columns.
    """

    def __init__(self, path: Path | Place) -> None:
        """Read the header.

        Raises:
            RequestFailed: it cannot be read.
            SourceError: it has no header.
        """
        self._path = path
        with _text(path) as file:
            head = file.readline(_MAX_LINE)
            tabs = path.name.lower().endswith(".tsv")
            self._delimiter = "\t" if tabs else max(_DELIMITERS, key=head.count)
            self.kind = "TSV" if self._delimiter == "\t" else "CSV"
            file.seek(0)
            try:
                header = next(csv.reader(_Lines(file), delimiter=self._delimiter), [])
            except (csv.Error, _TooLongError):
                header = []
        if not any(name.strip() for name in header):
            raise SourceError(f"{path}: has no header")
        self.names = _distinct([printable(name.strip()) for name in header])

    def __iter__(self) -> Iterator[Row]:
        """The rows after the header; empty lines are none."""
        with _text(self._path) as file:
            lines = _Lines(file)
            reader = csv.reader(lines, delimiter=self._delimiter)
            next(reader, None)
            while True:
                number = lines.number + 1
                try:
                    fields = next(reader, None)
                except _TooLongError:
                    yield Row(number, {}, _bad(f"line {lines.number} is longer than {_MAX_LINE:,} characters"))
                except csv.Error as error:
                    # A quote that nobody closes takes the lines up to the limit with it: say how many.
                    yield Row(number, {}, _bad(f"lines {number} to {lines.number}: {error}"))
                else:
                    if fields is None:
                        return
                    if fields:
                        yield self._row(number, fields)

    def count(self) -> Iterator[object]:
        """The rows."""
        return iter(self)

    def _row(self, number: int, fields: list[str]) -> Row:
        if len(fields) != len(self.names):
            return Row(number, {}, _bad(f"{counted(len(fields), 'field')} where the header has {len(self.names)}"))
        return Row(number, dict(zip(self.names, fields, strict=True)))


class JsonRows:
    """A JSON object a line.

    Attributes:
        kind: what it is, for people.
        names: the keys of the first object.
    """

    kind = "JSON lines"

    def __init__(self, path: Path | Place) -> None:
        """Look at the first object.

        Raises:
            RequestFailed: it cannot be read.
            SourceError: there is no object in it.
        """
        self._path = path
        first = next((row for row in self if row.error is None), None)
        if first is None:
            raise SourceError(f"{path}: holds no JSON object, one a line")
        self.names = list(first.values)

    def __iter__(self) -> Iterator[Row]:
        """The lines; empty ones are none."""
        with _text(self._path) as file:
            lines = _Lines(file)
            while True:
                try:
                    if (line := next(lines, None)) is None:
                        return
                    if line.strip():
                        yield Row(lines.number, read_object(line))
                except _TooLongError:
                    yield Row(lines.number, {}, _bad(f"the line is longer than {_MAX_LINE:,} characters"))
                except ValueError as error:
                    yield Row(lines.number, {}, _bad(str(error)))

    def count(self) -> Iterator[object]:
        """The rows."""
        return iter(self)


class ParquetRows:
    """Parquet, batch by batch; columns of bytes are left out.

    Attributes:
        kind: what it is, for people.
        names: the columns.
    """

    kind = "parquet"

    def __init__(self, path: Path | Place) -> None:
        """Read the schema.

        Raises:
            RequestFailed: it cannot be read, or is no parquet.
            SourceError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415  100 MB, for this format alone
        except ModuleNotFoundError:
            raise SourceError(f'{path}: parquet needs pyarrow: pip install "clipfleet[index]"') from None
        self._path = path
        with self._open() as file:
            schema = file.schema_arrow
            self._number = int(file.metadata.num_rows)
            self.names = [
                field.name
                for field in schema
                if not (pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type))
            ]

    @contextmanager
    def _open(self) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

        with opened(self._path) as raw:
            try:
                # Without buffering ahead: memory follows the batch, not the row group.
                with pq.ParquetFile(raw, pre_buffer=False) as file:
                    yield file
            except (pa.ArrowException, OSError, ValueError) as error:
                raise error_for(
                    ErrorCode.FETCH_FAILED,
                    f"incomplete: no whole parquet: {printable(str(error))[:200]}",
                    retryable=False,
                ) from None

    def __iter__(self) -> Iterator[Row]:
        """The rows.

        Raises:
            RequestFailed: the file cannot be read on.
        """
        number = 0
        with self._open() as file:
            for batch in file.iter_batches(batch_size=256, columns=self.names):
                for values in batch.to_pylist():
                    number += 1
                    try:
                        yield Row(number, {name: plain(value) for name, value in values.items()})
                    except ValueError as error:
                        yield Row(number, {}, _bad(str(error)))

    def count(self) -> Iterator[object]:
        """As many as the file says."""
        return iter(range(self._number))


ROW_READERS: Final[dict[str, Callable[[Path | Place], Rows]]] = {
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".jsonl": JsonRows,
    ".ndjson": JsonRows,
    ".parquet": ParquetRows,
}


def _distinct(names: list[str]) -> list[str]:
    """Names of which none is empty, and none is there twice: the second ``a`` becomes ``a.2``."""
    distinct: dict[str, None] = {}
    for number, name in enumerate(names, 1):
        wanted, copy = name or f"column{number}", 2
        while wanted in distinct:
            wanted, copy = f"{name or 'column'}.{copy}", copy + 1
        distinct[wanted] = None
    return list(distinct)


def _bad(message: str) -> RequestFailed:
    return error_for(ErrorCode.BAD_REQUEST, message)
