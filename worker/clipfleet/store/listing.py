"""What collections there are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clipfleet.schemas.errors import RequestFailed
from clipfleet.store.connection import Connection, Refused
from clipfleet.store.scan import COUNT

if TYPE_CHECKING:
    from clipfleet.store.catalog import Catalog
    from clipfleet.store.types import CollectionInfo

__all__ = ["collections"]


def collections(catalog: Catalog, connection: Connection) -> list[CollectionInfo]:
    """All collections of the database, with the number of their rows where they are loaded."""
    listed: list[CollectionInfo] = []
    for name in sorted(connection.call("list_collections")):
        try:
            info = catalog.find(name)
            rows = connection.call("query", name, **COUNT)
        except RequestFailed:
            continue  # dropped since it was listed
        except Refused:
            listed.append(info)  # not loaded, and listing is no reason to load
        else:
            listed.append(replace(info, rows=int(rows[0]["count(*)"])))
    return listed
