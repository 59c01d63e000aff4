"""A collection's own columns: ``part_0.parquet`` with ``id``, ``vector`` and ``metadata``.

``id`` is text, ``vector`` a list of floats, ``metadata`` one JSON object as text, so that nothing of it is lost. The
columns are those of a collection of clipfleet that declares no fields; ``index.bulk`` brings them into Milvus, and
embedding-reader reads them with ``embedding_column="vector"``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from clipfleet.index.sinks.columns import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clipfleet.index.sinks.sink import Dtype, SinkRow

__all__ = ["Parquet"]


class Parquet:
    """Everything of a row in one file."""

    name = "parquet"

    def __init__(self, dtype: Dtype) -> None:
        self.dtype = dtype

    def files(self, number: int) -> tuple[str, ...]:
        """The one file."""
        return (f"part_{number}.parquet",)

    def begin(self, whole: Path | None) -> None:
        """Whatever the last part is like, so is the next."""
        del whole
        arrow()

    def write(self, paths: Sequence[Path], rows: Sequence[SinkRow], vectors: Any) -> None:
        """One part."""
        pa, pq = arrow()
        count, dimension = vectors.shape
        flat = pa.array(vectors.reshape(-1))
        starts = pa.array(range(0, count * dimension + 1, dimension), pa.int32())
        columns = {
            "id": pa.array([row.id for row in rows], pa.string()),
            "vector": pa.ListArray.from_arrays(starts, flat),
            "metadata": pa.array([json.dumps(row.metadata, ensure_ascii=False) for row in rows], pa.string()),
        }
        pq.write_table(pa.table(columns), paths[0])

    def vectors(self, paths: Sequence[Path]) -> Any:
        """Those of one part."""
        _, pq = arrow()
        column = pq.read_table(paths[0], columns=["vector"])["vector"].combine_chunks()
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)

    def ids(self, whole: Path) -> list[str]:
        """The ids of one part."""
        _, pq = arrow()
        ids: list[str] = pq.read_table(whole, columns=["id"])["id"].to_pylist()
        return ids
