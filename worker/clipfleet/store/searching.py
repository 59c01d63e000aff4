"""One search of Milvus: its request, and what to do when its answer would be too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.store.answers import check_limit, check_output_fields
from clipfleet.store.connection import Refused
from clipfleet.store.retry import Verdict
from clipfleet.store.types import MAX_LIMIT, METRIC, Consistency

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["nearest", "search_request"]

_MIN_EF: Final = 64


def search_request(limit: int, output_fields: Sequence[str] | None, consistency: Consistency) -> dict[str, Any]:
    """What a search asks for, but for its vectors and its filter.

    Raises:
        RequestFailed: ``bad_request``: a limit or output fields that cannot be.
    """
    check_limit(limit, MAX_LIMIT)
    check_output_fields(output_fields)
    return {
        "limit": limit,
        "output_fields": ["id"] if output_fields is not None and not output_fields else ["metadata"],
        "consistency_level": consistency,
        "anns_field": "vector",
        "search_params": {"metric_type": METRIC, "params": {"ef": max(_MIN_EF, limit)}},
    }


def nearest(ask: Callable[[list[Any]], list[Any]], queries: Sequence[Any]) -> list[Any]:
    """The hits of each query, in fewer queries at a time where one answer cannot hold them.

    Raises:
        RequestFailed: ``bad_request``: Milvus refuses; ``too_large``: one query's hits are above what it sends at once.
    """
    if not queries:
        return []
    try:
        return ask(list(queries))
    except Refused as error:
        if error.verdict is not Verdict.SPLIT:
            raise error_for(ErrorCode.BAD_REQUEST, f"Milvus refuses the search: {error.text}") from error
        if len(queries) == 1:
            text = "the hits are too large for one answer: ask for fewer, or for fewer output_fields"
            raise error_for(ErrorCode.TOO_LARGE, text) from error
    middle = len(queries) // 2
    return nearest(ask, queries[:middle]) + nearest(ask, queries[middle:])
