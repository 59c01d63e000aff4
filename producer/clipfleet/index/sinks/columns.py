"""Metadata as columns: JSON objects that differ from row to row, in a table whose parts agree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.sinks.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Columns", "arrow"]

_INT64: Final = 1 << 63
# From narrow to wide: what begins as one may become a later one, and text holds everything.
_WIDER: Final = {("bool", "int"): "text", ("bool", "float"): "text", ("int", "float"): "float"}


def arrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        SinkError: not installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415  100 MB, for this alone
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        raise SinkError('parquet files need pyarrow: pip install "clipfleet[index]"') from None
    return pa, pq


class Columns:
    """The columns of a table that is written part by part.

    A column has one type in a part: ``bool``, ``int64``, ``double`` where a value has a fraction, else text, in which
    lists, objects and mixed values are JSON. Once there a column stays, and its type only widens: readers of many parts
    take the first one's word for all.
    """

    def __init__(self, id_column: str) -> None:
        self._id = id_column
        self._kinds: dict[str, str] = {}

    def learn(self, schema: Any) -> None:
        """Take over an earlier part's columns."""
        kinds = {"bool": "bool", "int64": "int", "double": "float"}
        self._kinds = {field.name: kinds.get(str(field.type), "text") for field in schema if field.name != self._id}

    def table(self, ids: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> Any:
        """The next part."""
        pa, _ = arrow()
        for row in metadata:
            for key, value in row.items():
                if value is not None:
                    name = self._named(key)
                    self._kinds[name] = _widened(self._kinds.get(name), _kind(value))
        types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string()}
        columns = {self._id: pa.array(ids, pa.string())}
        named = [{self._named(key): value for key, value in row.items()} for row in metadata]
        for name, kind in self._kinds.items():
            columns[name] = pa.array([_cell(row.get(name), kind) for row in named], types[kind])
        return pa.table(columns)

    def _named(self, key: str) -> str:
        return f"metadata.{key}" if key == self._id else key


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -_INT64 <= value < _INT64 else "text"
    return "float" if isinstance(value, float) else "text"


def _widened(known: str | None, kind: str) -> str:
    if known is None or known == kind:
        return kind
    return _WIDER.get((known, kind)) or _WIDER.get((kind, known)) or "text"


def _cell(value: Any, kind: str) -> Any:
    if value is None or (kind == "text" and isinstance(value, str)):
        return value
    if kind == "text":
        return json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "float" else value
