"""Rows taken out: looked up first, since what Milvus answers to a delete counts what was asked for, or nothing.

A filter is looked up by pages: nothing that Milvus limits (rows of an answer, bytes of a message, time of a call) grows
with the number of rows that match, and each page that is done stays done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.store.answers import IDS_AT_ONCE, pieces
from clipfleet.store.compile import ids_expression
from clipfleet.store.connection import Connection, Refused
from clipfleet.store.retry import StoreUnavailable, Verdict
from clipfleet.store.types import MAX_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MAX_DELETED", "delete_ids", "delete_matching", "delete_rows", "drop_collection"]

# Of one call by filter: 7 look-ups of 3 s each on Milvus Lite with 100,000 rows, well within a request's minute.
MAX_DELETED: Final = 100_000
# A look-up by a JSON key reads the whole collection on Milvus Lite, however few ids it gives: so as many as one answer
# takes. 16,384 ids of 1,024 bytes are a quarter of the 64 MiB that a message may have.
_PAGE: Final = MAX_LIMIT
_AT_ONCE: Final = 1_024


def delete_ids(ids: Sequence[str], find: Callable[[str, int], list[str]], delete: Callable[[str], object]) -> set[str]:
    """Delete the rows with these ids.

    Args:
        ids: checked.
        find: the ids of the rows for which an expression holds, at most so many.
        delete: deletes the rows for which an expression holds.

    Returns:
        The ids that had a row.
    """
    there: set[str] = set()
    for piece in pieces(ids):
        expression = ids_expression(piece)
        if found := find(expression, IDS_AT_ONCE):
            delete(expression)
            there.update(found)
    return there


def delete_matching(
    expression: str,
    limit: int | None,
    find: Callable[[str, int], list[str]],
    delete: Callable[[str], object],
    count: Callable[[str], int],
) -> int:
    """Delete the rows for which ``expression`` holds, at most ``limit`` of them.

    Args:
        expression: not empty.
        limit: None = all, where there are no more than ``MAX_DELETED``.
        find: see ``delete_ids``.
        delete: see ``delete_ids``.
        count: how many rows an expression holds for.

    Returns:
        How many were deleted; fewer than ``limit``: none is left.

    Raises:
        RequestFailed: ``bad_request``: there are too many for one call, and no limit; nothing is deleted.
    """
    deleted = 0
    most = MAX_DELETED if limit is None else limit
    while deleted < most and (found := find(expression, wanted := min(_PAGE, most - deleted))):
        if limit is None and not deleted and len(found) == _PAGE:
            _check(count(expression))
        for start in range(0, len(found), _AT_ONCE):
            # By their ids: a row that begins to match meanwhile is not counted, and so must not go.
            delete(ids_expression(found[start : start + _AT_ONCE]))
        deleted += len(found)
        if len(found) < wanted:
            break
    return deleted


def _check(matching: int) -> None:
    if matching > MAX_DELETED:
        raise error_for(
            ErrorCode.BAD_REQUEST,
            f"filter: {matching:,} rows match it, and one request deletes at most {MAX_DELETED:,}: give a limit, and"
            " ask again until fewer than that are deleted",
        )


def delete_rows(connection: Connection, name: str, expression: str) -> None:
    """Delete the rows of a collection for which an expression holds.

    Raises:
        StoreUnavailable: not now.
    """
    try:
        connection.call("delete", name, filter=expression)
    except Refused as error:
        raise StoreUnavailable(f"collection {name} does not let go of rows: {error.text}", 0.5) from error


def drop_collection(connection: Connection, name: str) -> None:
    """Delete a collection with all its rows; nothing happens when there is none.

    Milvus (2.3.5 and Lite 3.2.2) drops one for which an alias stands with no word: who searches by that alias finds
    nothing any more.

    Raises:
        RequestFailed: ``bad_request``: an alias stands for it.
        Refused: Milvus does not let go of it.
        StoreUnavailable: not now.
    """
    try:
        aliases = sorted((connection.call("list_aliases", name) or {}).get("aliases") or ())
    except Refused as error:
        if error.verdict is not Verdict.MISSING:
            raise
        aliases = []
    if aliases:
        verb = "stands" if len(aliases) == 1 else "stand"
        text = f"collection {name} is not dropped: {', '.join(aliases)} {verb} for it"
        raise error_for(ErrorCode.BAD_REQUEST, text)
    connection.call("drop_collection", name)
