"""What one request came to, in a stream of many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipfleet.pipeline.table import Table
    from clipfleet.schemas.errors import RequestFailed

__all__ = ["Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """One request's rows, or its error.

    Attributes:
        error: what a stage said of it; None if all is well.
        notes: ``truncated`` and the like.
        timing: milliseconds by name.
    """

    _table: Table | None = None
    error: RequestFailed | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return self.error is None

    @property
    def table(self) -> Table:
        """Its rows.

        Raises:
            RequestFailed: its error, if it has one.
        """
        if self.error is not None:
            raise self.error
        assert self._table is not None  # noqa: S101  (one of the two is there)
        return self._table
