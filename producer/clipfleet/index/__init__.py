"""Many pictures into a collection: stream them from where they are, send what fits, tell what became of each.

from clipfleet.index import index_sources
with Client("redis://localhost:6379") as client:
    report = index_sources(client, ["pictures", "shard-{000..099}.tar", "urls.csv"], collection="images")
"""

from __future__ import annotations

from clipfleet.index.files import PICTURE_SUFFIXES, printable, read_picture
from clipfleet.index.run import Outcome, Report, index_sources
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
from clipfleet.index.walk import Found, walk

__all__ = [
    "PICTURE_SUFFIXES",
    "TABLE_SUFFIXES",
    "Columns",
    "Failure",
    "Found",
    "Item",
    "Outcome",
    "Report",
    "Skip",
    "Source",
    "SourceError",
    "count_all",
    "index_sources",
    "open_sources",
    "printable",
    "read_picture",
    "walk",
]
