"""``rank``: best first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clipfleet.operators.operator import Operator, Place
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Rank"]


@dataclass(frozen=True)
class Rank(Operator):
    """Sort by score, best first; equal scores stay in order.

    It takes one list of (item, score), or a list of items and one of scores, as ``window_all`` gives them::

        .window_all(("label", "score"), "best", rank(3))

    Attributes:
        limit: how many are kept; None: all.
    """

    name = "rank"
    task = "many (item, score) -> list of (item, score)"

    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")

    def open(self, place: Place) -> Callable[..., Any]:  # noqa: ARG002  it needs nothing of it
        """The function raises ``bad_shape`` for what are no pairs, and for a score that is no finite number."""

        def rank(items: Sequence[Any], scores: Sequence[float] | None = None) -> list[tuple[Any, float]]:
            pairs = [_pair(pair) for pair in (items if scores is None else _zipped(items, scores))]
            return sorted(pairs, key=lambda pair: -pair[1])[: self.limit]

        return rank


def _zipped(items: Sequence[Any], scores: Sequence[float]) -> list[tuple[Any, float]]:
    if len(items) != len(scores):
        raise error_for(
            ErrorCode.BAD_SHAPE, f"{counted(len(items), 'item')} and {counted(len(scores), 'score')} cannot be ranked"
        )
    return list(zip(items, scores, strict=True))


def _pair(pair: Any) -> tuple[Any, float]:
    try:
        item, score = pair
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        raise error_for(ErrorCode.BAD_SHAPE, "what is ranked are pairs of an item and a number") from None
    if not math.isfinite(number):
        raise error_for(ErrorCode.BAD_SHAPE, f"{number} is no score to rank by")
    return item, number


rank = Rank
