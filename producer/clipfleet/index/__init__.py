"""Many pictures into a collection: stream them from where they are, send what fits, tell what became of each.

from clipfleet.index import index_sources
with Client("redis://localhost:6379") as client:
    report = index_sources(client, ["pictures", "shard-{000..099}.tar", "urls.csv"], collection="images")

With ``manifest=Manifest("run.sqlite")`` the same call goes on where a killed one was.
"""

from __future__ import annotations

from clipfleet.index.files import PICTURE_SUFFIXES, printable, read_picture
from clipfleet.index.manifest import Manifest, ManifestError, ManifestHeld, State, manifest_name
from clipfleet.index.meter import Meter
from clipfleet.index.part import Part, part_of
from clipfleet.index.processes import Processes
from clipfleet.index.reconcile import Reconciled, forgotten, reconcile
from clipfleet.index.run import Outcome, Report, index_sources
from clipfleet.index.sending import Send, Sending
from clipfleet.index.sources import (
    TABLE_SUFFIXES,
    Columns,
    Failure,
    Item,
    Skip,
    Source,
    SourceError,
    count_all,
    open_sources,
)
from clipfleet.index.typed import typed
from clipfleet.index.walk import Found, walk

__all__ = [
    "PICTURE_SUFFIXES",
    "TABLE_SUFFIXES",
    "Columns",
    "Failure",
    "Found",
    "Item",
    "Manifest",
    "ManifestError",
    "ManifestHeld",
    "Meter",
    "Outcome",
    "Part",
    "Processes",
    "Reconciled",
    "Report",
    "Send",
    "Sending",
    "Skip",
    "Source",
    "SourceError",
    "State",
    "count_all",
    "forgotten",
    "index_sources",
    "manifest_name",
    "open_sources",
    "part_of",
    "printable",
    "read_picture",
    "reconcile",
    "typed",
    "walk",
]
