"""Which ids a run has met already."""

from __future__ import annotations

import sqlite3
from enum import Enum
from hashlib import blake2b
from typing import Self

__all__ = ["Met", "Seen"]


class Met(Enum):
    """What is known of an id."""

    NEW = "new"
    SAME = "same"  # it came before, with the same picture
    TAKEN = "taken"  # it came before, with another picture


class Seen:
    """Ids and what they stood for, by their hashes; a context manager.

    Of two rows with one id the later one to be answered would stay in the collection, which is a matter of chance;
    so an id is sent once. Five million ids as a Python set are half a gigabyte: SQLite's nameless database keeps
    16 MB in memory and the rest in a file that goes with it.
    """

    def __init__(self) -> None:
        # The generators that use it may be closed by the garbage collector, in any thread.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode=OFF",
            "PRAGMA cache_size=-16000",
            "CREATE TABLE seen (id BLOB PRIMARY KEY, picture BLOB) WITHOUT ROWID",
            "BEGIN",
        ):
            self._db.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def add(self, id: str, picture: bytes) -> Met:  # noqa: A002 - the contract's name
        """Take note of an id, and of the bytes or the address of its picture."""
        key, value = _hash(id.encode()), _hash(picture)
        if self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, value)).rowcount:
            return Met.NEW
        (earlier,) = self._db.execute("SELECT picture FROM seen WHERE id = ?", (key,)).fetchone()
        return Met.SAME if earlier == value else Met.TAKEN

    def __contains__(self, id_: str) -> bool:
        return self._db.execute("SELECT 1 FROM seen WHERE id = ?", (_hash(id_.encode()),)).fetchone() is not None


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
