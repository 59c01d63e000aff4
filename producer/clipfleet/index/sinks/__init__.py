"""Where vectors go when it is not a collection: folders of numbered part files.

with open_sink("npy", Path("out")) as sink:
    sink.write([SinkRow("cat.jpg", vector, {"caption": "a cat"})], model=result.model)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.index.sinks.npy import Npy
from clipfleet.index.sinks.parquet import Parquet
from clipfleet.index.sinks.parts import FolderSink
from clipfleet.index.sinks.sink import DTYPES, Dtype, Sink, SinkError, SinkRow

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DTYPES", "ROWS_PER_PART", "SINKS", "Dtype", "FolderSink", "Sink", "SinkError", "SinkRow", "open_sink"]

SINKS: Final[dict[str, type[Npy | Parquet]]] = {"npy": Npy, "parquet": Parquet}
# What a killed run has to do again at most, and what lies in memory: 20 MB of 512 dimensions.
ROWS_PER_PART: Final = 10_000


def open_sink(
    kind: str, folder: Path, *, dtype: Dtype = "float32", rows_per_part: int = ROWS_PER_PART, origin: str = ""
) -> FolderSink:
    """A folder of part files; going on behind the finished parts that it holds.

    Args:
        kind: ``npy``, clip-retrieval's layout; or ``parquet``, a collection's columns.
        folder: where to; made when it is not there.
        dtype: of the vectors. float32 is what the model gave; float16, as clip-retrieval itself writes, is half as
            large and at most 3e-8 of cosine away (measured on 100,000 random vectors of 512 dimensions).
        rows_per_part: how many rows a part has; the last one has fewer.
        origin: what the rows are taken from, where a folder shall hold those of nothing else; empty = of anything.

    Raises:
        SinkError: it cannot be written, is being written by another program, or holds something else.
    """
    if kind not in SINKS or dtype not in DTYPES or rows_per_part < 1:
        raise SinkError(f"{kind!r:.40} of {dtype!r:.40}: there are {', '.join(SINKS)} of {', '.join(DTYPES)}")
    return FolderSink(folder, SINKS[kind](dtype), rows_per_part=rows_per_part, origin=origin)
