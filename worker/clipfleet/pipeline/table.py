"""What a pipeline answers: rows with named columns, to read by name and to look at.

::

    table = objects(data)
    table[0]["label"], table[0].label     # one row
    table["vector"]                        # one column, a list
    embed(data).item()                     # the sole value of a pipeline that gives one
    table.show()                           # in the terminal; a notebook shows it by itself
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, overload

import numpy as np

from clipfleet.schemas.text import counted

__all__ = ["Row", "Table"]


class Row(Mapping[str, Any]):
    """One row: a mapping of column names to values. ``row.label`` is ``row["label"]``."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: Mapping[str, int], values: tuple[Any, ...]) -> None:
        self._places = places
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[_place(self._places, name)]

    def __getattr__(self, name: str) -> Any:
        # Slots are found before this; a copy or an unpickled row that has none yet must not look for them here.
        if not name.startswith("_") and name in self._places:
            return self._values[self._places[name]]
        raise AttributeError(f"no column {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return tuple(self._places) == tuple(other._places) and _same(self._values, other._values)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # arrays are among its values

    def __repr__(self) -> str:
        from clipfleet.pipeline.values import brief  # noqa: PLC0415

        return f"Row({', '.join(f'{name}={brief(self[name], 40)}' for name in self._places)})"


class Table(Sequence[Row]):
    """Rows with named columns; immutable.

    Attributes:
        columns: their names, in order.
        rows: the values, one tuple a row, in the order of ``columns``.

    Raises:
        ValueError: two columns of one name, or a row that has not one value for each.
    """

    __slots__ = ("_places", "columns", "rows")

    def __init__(self, columns: Iterable[str], rows: Iterable[Sequence[Any]] = ()) -> None:
        self.columns: tuple[str, ...] = tuple(columns)
        self.rows: tuple[tuple[Any, ...], ...] = tuple(map(tuple, rows))
        self._places = {name: place for place, name in enumerate(self.columns)}
        if len(self._places) != len(self.columns):
            raise ValueError(f"two columns of one name among {', '.join(self.columns)}")
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row has one value for each of {', '.join(self.columns)}")

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> Table: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Row | Table | list[Any]:
        """A row by its number, a part of the table by a slice, a column by its name."""
        if isinstance(key, str):
            return self.column(key)
        if isinstance(key, slice):
            return Table(self.columns, self.rows[key])
        return Row(self._places, self.rows[key])

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Table):
            return self.columns == other.columns and _same(self.rows, other.rows)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # arrays are among its values

    def __repr__(self) -> str:
        return f"Table({counted(len(self), 'row')}: {', '.join(self.columns)})"

    def column(self, name: str) -> list[Any]:
        """The values of one column.

        Raises:
            KeyError: there is none of that name.
        """
        place = _place(self._places, name)
        return [row[place] for row in self.rows]

    def item(self) -> Any:
        """The only value, where a pipeline gives one.

        Raises:
            ValueError: there are more, or none.
        """
        if len(self) != 1 or len(self.columns) != 1:
            raise ValueError(f"{self!r} has not exactly one value")
        return self.rows[0][0]

    def show(self, limit: int = 10, *, file: TextIO | None = None) -> None:
        """Print the first ``limit`` rows: text, numbers, vectors, hits, and pictures as coloured cells.

        With ``rich`` (the ``[cli]`` extra) and a terminal the pictures are seen; else it is plain text.
        """
        from clipfleet.pipeline.show import print_table  # noqa: PLC0415  most tables are never looked at

        print_table(self, limit, file)

    def _repr_html_(self) -> str:
        from clipfleet.pipeline.show import html_table  # noqa: PLC0415

        return html_table(self)


def _place(places: Mapping[str, int], name: str) -> int:
    try:
        return places[name]
    except KeyError:
        raise KeyError(f"no column {name!r}; there are {', '.join(places)}") from None


def _same(left: Any, right: Any) -> bool:
    """Equality that an array, wherever it is inside, answers with one word."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            isinstance(left, np.ndarray)
            and isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right)
        )
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
