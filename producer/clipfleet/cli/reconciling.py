"""At the end of an indexing run: does the store hold what the manifest says?"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipfleet.cli.milvus import opened
from clipfleet.index import State, forgotten, reconcile
from clipfleet.schemas.errors import ClipfleetError, ErrorCode, RequestFailed
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clipfleet.cli.output import Output
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Manifest, Reconciled, Report, Source
    from clipfleet.store import Store

__all__ = ["Verdict", "reconcile_run"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        agrees: whether the store holds what the manifest calls done; None where it was not asked.
        text: for people.
    """

    agrees: bool | None
    text: str


def reconcile_run(
    out: Output,
    settings: Settings,
    collection: str,
    manifest: Manifest,
    sources: Sequence[Source],
    index: Callable[[Sequence[Source]], Report],
) -> Verdict:
    """Compare, send what is missing once more, compare again."""
    if settings.milvus_uri is None:
        return Verdict(None, "not reconciled: which Milvus the workers use is not known here (--milvus-uri)")
    if importlib.util.find_spec("pymilvus") is None:
        return Verdict(None, "not reconciled: pymilvus is not installed here")
    try:
        found = _compare(settings, collection, manifest)
        twins = found.twins
        if not found.agrees:
            out.step(f"{_lost(found)}: sending them once more")
            index(forgotten(sources, manifest))
            found = _compare(settings, collection, manifest, before=found)
    except ClipfleetError as error:
        return Verdict(False, f"NOT reconciled: {error}")
    if found.agrees:
        unknown = f"; of {found.unknown:,} only the id could be compared" if found.unknown else ""
        had = counted(
            twins, "duplicate had a row of its own, which was", "duplicates had rows of their own, which were"
        )
        renewed = f"; {had} renewed" if twins else ""
        text = f"reconciled: the store holds each of the {found.done:,} that the manifest calls done{unknown}{renewed}"
        return Verdict(True, text)
    named = f" ({', '.join(found.first)})" if found.first else ""
    return Verdict(False, f"NOT reconciled: {_lost(found)}{named}; run it again")


def _lost(found: Reconciled) -> str:
    told = [counted(found.missing, "is missing", "are missing")] if found.missing or not found.changed else []
    told += [counted(found.changed, "holds another picture", "hold another picture")] if found.changed else []
    if found.twins and not found.missing and not found.changed:
        return f"{counted(found.twins, 'duplicate has a row of its', 'duplicates have rows of their')} own in the store"
    first, *more = told
    number, _, what = first.partition(" ")
    return " and ".join([f"{number} of {found.done:,} {what} in the store", *more])


def _is_there(store: Store, collection: str) -> bool:
    """Whether it was something else that Milvus refused: then no row is missing."""
    try:
        store.count(collection)
    except RequestFailed:
        return False
    return True


def _is_done(manifest: Manifest, id_: str) -> bool:
    known = manifest.known(id_)
    return known is not None and known.state is State.DONE


def _compare(settings: Settings, collection: str, manifest: Manifest, before: Reconciled | None = None) -> Reconciled:
    with opened(settings) as store:

        def holds(noted: Mapping[str, str]) -> Mapping[str, bool]:
            try:
                return store.holds(collection, noted)
            except RequestFailed as error:
                if error.code is ErrorCode.BAD_REQUEST and not _is_there(store, collection):
                    return {}
                raise

        found = reconcile(manifest, holds)
    if before is not None:
        # What was missing and could not be sent again is not done, and missing all the same.
        lost = max(0, before.done + before.twins - found.done)
        found.missing, found.done = found.missing + lost, found.done + lost
        # Those alone that still are: the others have been sent again.
        found.first = found.first or [id_ for id_ in before.first if not _is_done(manifest, id_)]
    return found
