"""``index --sync``: what has left the corpus leaves the collection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.cli.reconciling import Verdict
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.cli.settings import Settings
    from clipfleet.index import Manifest, Report
    from clipfleet.index.sync import Visited
    from clipfleet.producer.requests import NewRequest

__all__ = ["MOST_ID_BYTES", "sync_run"]

_IDS_AT_ONCE: Final = 250
# No store takes a longer one: there is no row, and to ask for it would be refused with all others of its request.
MOST_ID_BYTES: Final = 1_024


def sync_run(settings: Settings, collection: str, manifest: Manifest, visited: Visited, report: Report) -> Verdict:
    """Delete the rows of pictures that the manifest knows and the run has not met, unless that may be a mistake."""
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.producer import requests  # noqa: PLC0415

    if doubt := report.stopped or visited.doubt:
        return Verdict(False, f"nothing was taken out, since not everything could be seen: {doubt}")
    sent: list[list[str]] = []

    def deletions() -> Iterator[NewRequest]:
        for gone in visited.gone(manifest):
            page = [id_ for id_ in gone if len(id_.encode()) <= MOST_ID_BYTES]
            if len(page) < len(gone):
                manifest.forget([id_ for id_ in gone if len(id_.encode()) > MOST_ID_BYTES])
            for start in range(0, len(page), _IDS_AT_ONCE):
                sent.append(page[start : start + _IDS_AT_ONCE])
                yield requests.delete(ids=sent[-1], collection=collection)

    deleted = 0
    with connect(settings, lane="bulk", wait_for_worker=True) as client:
        for result in client.map(deletions(), max_in_flight=4):
            if result.error is not None:
                return Verdict(False, f"what has left could not be taken out: {result.error}; run it again")
            manifest.forget(sent.pop(0))
            deleted += int(result.outputs.get("deleted", 0))
    manifest.flush()
    return Verdict(True, f"{counted(deleted, 'that has left was', 'that have left were')} taken out")
