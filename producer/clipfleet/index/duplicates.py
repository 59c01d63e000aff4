"""Pictures that came under several ids: one of them is kept, the others are noted as its duplicates.

Which one is kept is not written down but follows from the contents that the manifest knows, so that it is never out of
date: a duplicate is one of whichever item has the same content and *stands*, which means that its row is there, or that
it has been tried. Where nothing stands any more (the kept one left the corpus, or its file has become another picture),
the duplicate is *alone*, and sent like any other::

    (no row) --its content is somebody's--> DUPLICATE --nobody has it any more--> ALONE --sent--> SENT ...

An item that may have a row is never made a duplicate: left out is only what was never sent, so that no row has to go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.index.states import State
from clipfleet.schemas.errors import RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["Duplicates"]

_PAGE: Final = 1_000
# Rows of the same content as ``d`` that may be kept: all states below DUPLICATE. ``content <> x''`` names the index.
_SAME: Final = "k.content = d.content AND k.content <> x'' AND k.state < 5"
# DONE; or tried in this pass; or refused for what it is, where nobody asks to try again.
_STANDS: Final = "(k.state = 2 OR k.run = :run OR (k.state = 4 AND NOT :retry))"
# One seek each, in the index's own order: a content may be that of half a million rows.
_BEST: Final = "coalesce({})".format(
    ", ".join(
        f"(SELECT k.id FROM item k WHERE k.content = d.content AND k.content <> x'' AND k.state = {state:d} LIMIT 1)"  # noqa: S608
        for state in (State.DONE, State.PERMANENT, State.TRANSIENT, State.SENT)
    )
)


class Duplicates:
    """A manifest's duplicates.

    Args:
        ask: runs a statement on the manifest's file and gives its rows.
        change: runs one that changes it.
    """

    def __init__(self, ask: Callable[..., list[Any]], change: Callable[..., None]) -> None:
        self._ask = ask
        self._change = change

    def kept(self, content: bytes, *, run: int, retry_failed: bool = False, standing: bool = False) -> str:
        """Which item has a content; empty where none has.

        Args:
            content: of a picture, as ``Manifest.sent`` was told.
            run: the pass that is under way.
            retry_failed: whether this run sends those again that failed of themselves.
            standing: only one that stands; else any that may still come to be met in this pass.
        """
        where = f"AND {_STANDS}" if standing else ""
        found = self._ask(
            "SELECT k.id FROM item k, (SELECT :content AS content) d"  # noqa: S608  no values in it
            f" WHERE {_SAME} {where} LIMIT 1",
            {"content": content, "run": run, "retry": retry_failed},
        )
        return found[0][0] if found else ""

    def leave_alone(self, *, run: int, retry_failed: bool = False, met: bool = False) -> int:
        """Mark the duplicates of what does not stand any more, to be sent; how many.

        Args:
            run: the last pass.
            retry_failed: as of ``kept``.
            met: those alone that this pass has met.
        """
        self._change(
            f"UPDATE item AS d SET state = 6 WHERE d.state = 5 AND (d.run = :run OR NOT :met)"  # noqa: S608
            f" AND NOT EXISTS (SELECT 1 FROM item k WHERE {_SAME} AND {_STANDS})",
            {"run": run, "retry": retry_failed, "met": met},
        )
        ((changed,),) = self._ask("SELECT changes()")
        return int(changed)

    def failed(self, *, run: int) -> Iterator[tuple[str, RequestFailed]]:
        """The duplicates that this pass has met of items that failed, each with why: the same bytes fail alike."""
        query = (
            f"SELECT d.id, k.state, k.code, k.message FROM item d JOIN item k ON k.id = {_BEST}"  # noqa: S608
            " WHERE d.state = 5 AND d.run = :run AND d.id > :after AND k.state IN (3, 4) ORDER BY d.id LIMIT :page"
        )
        after = ""
        while page := self._ask(query, {"run": run, "after": after, "page": _PAGE}):
            for id_, state, code, message in page:
                yield id_, error_for(code, message, retryable=state == State.TRANSIENT)
            after = page[-1][0]

    def ids(self) -> Iterator[list[str]]:
        """The ids of all duplicates, in order and in pages; changes may be made meanwhile."""
        after = ""
        while page := self._ask("SELECT id FROM item WHERE state = 5 AND id > ? ORDER BY id LIMIT ?", (after, _PAGE)):
            yield [id_ for (id_,) in page]
            after = page[-1][0]

    def listed(self) -> Iterator[list[tuple[str, str]]]:
        """Each duplicate and the id under which its picture is, by pages in the order of their ids."""
        query = f"SELECT d.id, {_BEST} FROM item d WHERE d.state = 5 AND d.id > :after ORDER BY d.id LIMIT :page"  # noqa: S608
        after = ""
        while page := self._ask(query, {"after": after, "page": _PAGE}):
            yield [(id_, kept or "") for id_, kept in page]
            after = page[-1][0]
