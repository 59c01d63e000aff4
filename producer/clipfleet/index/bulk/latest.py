"""Which row of each id is the last one written: an import replaces nothing, so only that one may be in it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from clipfleet.index.sources.scratch import Scratch, hashed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Latest"]


class Latest(Scratch):
    """Ids by their hashes, and the number of each one's last row; a context manager.

    Attributes:
        rows: how many were noted.
    """

    def __init__(self) -> None:
        super().__init__("latest (id BLOB PRIMARY KEY, row INTEGER)")
        self.rows = 0
        self._all = blake2b(digest_size=16)

    def note(self, ids: Sequence[str]) -> None:
        """Take note of the next rows' ids."""
        hashes = [hashed(id_) for id_ in ids]
        self._db.executemany(
            "INSERT OR REPLACE INTO latest VALUES (?, ?)", [(key, self.rows + n) for n, key in enumerate(hashes)]
        )
        self.rows += len(ids)
        self._all.update(b"".join(hashes))

    def __len__(self) -> int:
        """How many ids there are."""
        return int(self._db.execute("SELECT count(*) FROM latest").fetchone()[0])

    @property
    def digest(self) -> str:
        """The same for the same ids in the same order."""
        return self._all.hexdigest()

    def is_last(self, id_: str, row: int) -> bool:
        """Whether the ``row``-th row noted is the last one of its id."""
        (last,) = self._db.execute("SELECT row FROM latest WHERE id = ?", (hashed(id_),)).fetchone()
        return int(last) == row
