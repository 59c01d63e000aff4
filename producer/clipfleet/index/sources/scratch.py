"""A table that a run needs and nobody after it."""

from __future__ import annotations

import sqlite3
from hashlib import blake2b
from typing import Final, Self

__all__ = ["Scratch", "hashed"]

# A run has up to four of these beside its manifest, and 16 MB for each would be most of its memory. Nor would they be
# quicker: what does not fit is read from the system's memory, where a file without a name stays as a rule.
_CACHE_KIB: Final = 1_000


class Scratch:
    """SQLite's nameless database, which keeps 1 MB in memory and the rest in a file that goes with it.

    Five million ids as a Python set are half a gigabyte. A context manager.

    Args:
        table: name and columns.
    """

    def __init__(self, table: str) -> None:
        # The generators that use it may be closed by the garbage collector, in any thread.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode=OFF",
            f"PRAGMA cache_size=-{_CACHE_KIB}",
            f"CREATE TABLE {table} WITHOUT ROWID",
            "BEGIN",
        ):
            self._db.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()


def hashed(value: str | bytes) -> bytes:
    """16 bytes that stand for it."""
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return blake2b(data, digest_size=16).digest()
