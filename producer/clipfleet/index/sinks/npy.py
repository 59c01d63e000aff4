"""clip-retrieval's layout: ``img_emb/img_emb_0.npy`` beside ``metadata/metadata_0.parquet``, row by row.

As https://github.com/rom1504/clip-retrieval writes it and https://github.com/rom1504/embedding-reader (``parquet_npy``)
and autofaiss read it. These take files in the order of their names, 10 before 2: which is the same in both folders, so
that rows stay side by side. The id is the column ``image_path``; metadata are the other columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.sinks.columns import Columns, arrow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clipfleet.index.sinks.sink import Dtype, SinkRow

__all__ = ["Npy"]

_ID: Final = "image_path"


class Npy:
    """Vectors in one file, what is said of them in another."""

    name = "npy"

    def __init__(self, dtype: Dtype) -> None:
        self.dtype = dtype
        self._columns = Columns(_ID)

    def files(self, number: int) -> tuple[str, ...]:
        """The vectors, and then what makes the part whole."""
        return f"img_emb/img_emb_{number}.npy", f"metadata/metadata_{number}.parquet"

    def begin(self, whole: Path | None) -> None:
        """Keep the columns of the last part."""
        _, pq = arrow()
        if whole is not None:
            self._columns.learn(pq.read_schema(whole))

    def write(self, paths: Sequence[Path], rows: Sequence[SinkRow], vectors: Any) -> None:
        """One part."""
        import numpy as np  # noqa: PLC0415

        _, pq = arrow()
        with paths[0].open("wb") as file:
            np.save(file, vectors)
        pq.write_table(self._columns.table([row.id for row in rows], [row.metadata for row in rows]), paths[1])

    def vectors(self, paths: Sequence[Path]) -> Any:
        """Those of one part."""
        import numpy as np  # noqa: PLC0415

        return np.load(paths[0])

    def ids(self, whole: Path) -> list[str]:
        """The ids of one part."""
        _, pq = arrow()
        ids: list[str] = pq.read_table(whole, columns=[_ID])[_ID].to_pylist()
        return ids
