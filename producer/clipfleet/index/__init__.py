"""Many pictures into a collection: walk the sources, send what fits, tell what became of each.

from clipfleet.index import index_folder
with Client("redis://localhost:6379") as client:
    report = index_folder(client, ["pictures"], collection="images")
"""

from __future__ import annotations

from clipfleet.index.files import PICTURE_SUFFIXES, printable, read_picture
from clipfleet.index.folder import Outcome, Report, index_folder
from clipfleet.index.walk import Found, walk

__all__ = [
    "PICTURE_SUFFIXES",
    "Found",
    "Outcome",
    "Report",
    "index_folder",
    "printable",
    "read_picture",
    "walk",
]
