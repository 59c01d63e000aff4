"""Rows as files that Milvus' import takes: a collection's own columns, and nothing in them that it would choke on."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final

from clipfleet.index.sinks.columns import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.store import CollectionInfo, Encoded

__all__ = ["RowFile"]


class RowFile:
    """One parquet file, written some rows at a time.

    Attributes:
        rows: how many it holds.
        size: about how many bytes.
    """

    def __init__(self, file: IO[bytes], info: CollectionInfo) -> None:
        pa, pq = arrow()
        self.rows = 0
        self.size = 0
        self._pa = pa
        self._schema = _schema(pa, info)
        self._writer: Any = pq.ParquetWriter(file, self._schema)

    def write(self, rows: Sequence[Encoded]) -> None:
        """Some more."""
        if not rows:
            return
        columns = {
            field.name: self._pa.array([row.entity[field.name] for row in rows], field.type) for field in self._schema
        }
        self._writer.write_table(self._pa.table(columns, schema=self._schema))
        self.rows += len(rows)
        self.size += sum(row.size for row in rows)

    def close(self) -> None:
        """Write what is left; the file stays open."""
        self._writer.close()


def _schema(pa: Any, info: CollectionInfo) -> Any:
    types: Final = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
    # Not a list of fixed length, which Milvus 2.3 does not know, and never float16, which ends it.
    columns = [("id", pa.string()), ("vector", pa.list_(pa.float32())), ("metadata", pa.string())]
    for field in info.fields:
        columns += [(field.name, types[field.type]), (field.flag, pa.bool_())]
    return pa.schema(columns)
