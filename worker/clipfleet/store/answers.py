"""Questions checked and answers read: the small parts of ``store`` that need no connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.store.retry import Verdict, is_too_large
from clipfleet.store.rows import check_id
from clipfleet.store.types import Hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.store.connection import Refused

__all__ = ["IDS_AT_ONCE", "check_ids", "check_limit", "check_output_fields", "hits_of", "pieces", "row_refused"]

IDS_AT_ONCE: Final = 256  # rows of 64 KiB metadata and their vectors stay well below the 64 MiB of one answer


def check_limit(limit: object, most: int) -> None:
    """Raise ``bad_request`` unless ``limit`` is an integer of 1 to ``most``."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise error_for(ErrorCode.BAD_REQUEST, f"limit is {limit!r:.40}, 1 to {most} are possible")


def row_refused(error: Refused) -> RequestFailed:
    """The verdict on one row that Milvus refused by itself."""
    if error.verdict is Verdict.SPLIT or is_too_large(error.error):
        return error_for(ErrorCode.TOO_LARGE, "the row is larger than Milvus takes in one message")
    return error_for(ErrorCode.BAD_REQUEST, f"Milvus refuses the row: {error.text}")


def check_output_fields(output_fields: object) -> None:
    """Raise ``bad_request`` unless it is ``None`` or a list of texts."""
    if output_fields is None:
        return
    if not isinstance(output_fields, list | tuple) or not all(isinstance(key, str) for key in output_fields):
        raise error_for(ErrorCode.BAD_REQUEST, "output_fields is a list of metadata keys")


def hits_of(found: Sequence[Any], output_fields: Sequence[str] | None) -> list[Hit]:
    """One query's hits from pymilvus' answer, with the asked metadata keys (``None`` = all)."""
    hits: list[Hit] = []
    for hit in found:
        metadata = (hit.get("entity") or {}).get("metadata") or {}
        if output_fields is not None:
            metadata = {key: metadata[key] for key in output_fields if key in metadata}
        # Rounding may put a row a hair beyond 1.
        hits.append(Hit(str(hit["id"]), min(1.0, max(-1.0, float(hit["distance"]))), dict(metadata)))
    return hits


def check_ids(ids: Sequence[str]) -> None:
    """Raise ``bad_request`` for the first unusable id."""
    if isinstance(ids, str):
        raise error_for(ErrorCode.BAD_REQUEST, "ids is a list of texts")
    for row_id in ids:
        problem = check_id(row_id)
        if problem is not None:
            raise problem


def pieces(ids: Sequence[str]) -> list[Sequence[str]]:
    """``ids`` without repetitions, as many at once as one answer can hold."""
    unique = list(dict.fromkeys(ids))
    return [unique[start : start + IDS_AT_ONCE] for start in range(0, len(unique), IDS_AT_ONCE)]
