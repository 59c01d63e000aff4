"""A whole collection read by pages, each beginning where the last one ended.

Pages by ``id > last`` need answers in the order of ids. Milvus gives them where a query says that it is an iterator's
(as ``pymilvus.orm.iterator`` does), and not otherwise: Milvus Lite 3.2 was seen to give the first matches in any order.
pymilvus' own iterator is not used: it does not escape ids, and cannot go on after an error or from a given id.
"""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.store.compile import quote
from clipfleet.store.connection import Refused
from clipfleet.store.retry import Verdict, retrying
from clipfleet.store.types import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["COUNT", "PAGE_ROWS", "scan"]

PAGE_ROWS: Final = 1_000
_PATIENCE_S: Final = 60.0
COUNT: Final[dict[str, Any]] = {"filter": "", "output_fields": ["count(*)"], "consistency_level": "Strong"}


def scan(query: Callable[[dict[str, Any]], list[Any]], after: str = "") -> Iterator[list[Row]]:
    """Pages of rows in the order of their ids as UTF-8; none twice, and none missed while nobody writes.

    Every row that was acknowledged before the first page is there; one that is written meanwhile is there or not, as it
    comes before or behind the page. A page is asked for again for a minute while Milvus is away.

    Args:
        query: makes one query of the collection from its request's fields.
        after: the id behind which to begin.

    Raises:
        RequestFailed: ``bad_request``: Milvus refuses; ``too_large``: one row alone is above what it sends at once;
            ``store_failed``: it has been away for a minute; ``internal``: it gives rows in another order, so that some
            would be missed.
    """
    rows = PAGE_ROWS
    # pymilvus asks for an iterator's pages at the collection's own consistency, whatever it is told. After one Strong
    # answer the server has come as far as the moment of asking, and stays there.
    _ask(query, COUNT)
    while True:
        try:
            found = _ask(query, _request(after, rows))
        except Refused as error:
            if error.verdict is not Verdict.SPLIT:
                raise error_for(ErrorCode.BAD_REQUEST, f"Milvus refuses the query: {error.text}") from error
            if rows == 1:
                raise error_for(ErrorCode.TOO_LARGE, f"the row after {after!r:.80} is too large to be read") from error
            rows = max(1, rows // 4)
            continue
        if not found:
            return
        page = [Row(each["id"], np.asarray(each["vector"], dtype=np.float32), each["metadata"]) for each in found]
        _check_order(after, page)
        yield page
        after = page[-1].id


def _ask(query: Callable[[dict[str, Any]], list[Any]], request: dict[str, Any]) -> list[Any]:
    return retrying(lambda: query(request), deadline=time.monotonic() + _PATIENCE_S, stop=Event())


def _request(after: str, rows: int) -> dict[str, Any]:
    return {
        "filter": f"id > {quote(after)}",
        "output_fields": ["id", "vector", "metadata"],
        "limit": rows,
        "iterator": "True",
        # Without it a page of a server's segments may leave out ids below its last one.
        "reduce_stop_for_best": True,
    }


def _check_order(after: str, page: list[Row]) -> None:
    ids = [after.encode(), *(row.id.encode() for row in page)]
    if any(earlier >= later for earlier, later in pairwise(ids)):
        raise error_for(ErrorCode.INTERNAL, "Milvus does not give rows in the order of their ids: some would be missed")
