"""What a sink is: rows in, and out come the ids of those that nothing can take away any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["DTYPES", "Dtype", "Sink", "SinkError", "SinkRow"]

Dtype = Literal["float32", "float16"]
DTYPES: Final[tuple[str, ...]] = get_args(Dtype)


class SinkError(ValueError):
    """A sink cannot be written, or holds something that these rows must not be mixed with."""


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One row.

    Attributes:
        id: its id.
        vector: float32, shape ``[dimension]``: an array, or a result's buffer.
        metadata: JSON-able, with keys that are text.
    """

    id: str
    vector: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Sink(Protocol):
    """Rows are kept in parts. A part is whole, or it is not there; what is there is never written again.

    A run that is killed loses the rows of the part that was not whole: whoever keeps account of what is done believes
    ``write`` and ``close`` alone, and at the start ``held``, for the last part may be one that nobody was told of.

    Attributes:
        parts: how many whole parts there are.
    """

    parts: int

    def open(self) -> None:
        """Begin, behind the parts that are there.

        Raises:
            SinkError: it cannot be written, or another program is writing it.
        """

    def held(self, begin: int = 0) -> Iterator[str]:
        """The ids in all parts that are whole, from part ``begin`` on, in the order written."""

    def write(self, rows: Sequence[SinkRow], *, model: str) -> list[str]:
        """Take rows of one model, by its fingerprint.

        Returns:
            The ids, of these and earlier calls, that have become part of a whole part.

        Raises:
            SinkError: the parts belong to another model, or to vectors of another length; the disk is full.
        """

    def close(self) -> list[str]:
        """Write the last part, however few rows it has; a second call does nothing.

        Returns:
            Its rows' ids.

        Raises:
            SinkError: the disk is full.
        """
