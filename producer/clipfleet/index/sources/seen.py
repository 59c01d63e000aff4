"""Which ids a run has met already."""

from __future__ import annotations

from enum import Enum

from clipfleet.index.sources.scratch import Scratch, hashed

__all__ = ["Met", "Seen"]


class Met(Enum):
    """What is known of an id."""

    NEW = "new"
    SAME = "same"  # it came before, with the same picture
    TAKEN = "taken"  # it came before, with another picture


class Seen(Scratch):
    """Ids and what they stood for, by their hashes; a context manager.

    Of two rows with one id the later one to be answered would stay in the collection, which is a matter of chance;
    so an id is sent once.
    """

    def __init__(self) -> None:
        super().__init__("seen (id BLOB PRIMARY KEY, picture BLOB)")

    def add(self, id: str, picture: bytes) -> Met:  # noqa: A002 - the contract's name
        """Take note of an id, and of the bytes or the address of its picture."""
        key, value = hashed(id), hashed(picture)
        if self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, value)).rowcount:
            return Met.NEW
        (earlier,) = self._db.execute("SELECT picture FROM seen WHERE id = ?", (key,)).fetchone()
        return Met.SAME if earlier == value else Met.TAKEN

    def __contains__(self, id_: str) -> bool:
        return self._db.execute("SELECT 1 FROM seen WHERE id = ?", (hashed(id_),)).fetchone() is not None
