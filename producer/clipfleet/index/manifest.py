"""What became of each item, on disk: a run that is killed anywhere goes on from here.

One SQLite file a run, one row an item::

    (no row) --sent--> SENT --answered--> DONE | TRANSIENT | PERMANENT
                         ^                  |        |           |
                         |    changed, or its row is missing     |
                         +------------------+--next run--+-------+ changed, or asked for

and where pictures are compared by their content, what ``duplicates`` says.

The file is held by one process, and written in transactions of 0.2 s or of 200 rows. What is lost with the
last one is sent again, under the same id, and replaces itself: so nothing is skipped, and nothing is there twice.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from clipfleet.index.duplicates import Duplicates
from clipfleet.index.manifest_file import ManifestError, ManifestHeld, cannot_be_used, open_file
from clipfleet.index.sources.item import Stored
from clipfleet.index.states import Known, State, Todo, decide, is_transient
from clipfleet.schemas.errors import RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clipfleet.index.sources import Item

__all__ = ["Known", "Manifest", "ManifestError", "ManifestHeld", "State", "Todo", "decide", "is_transient", "signature"]

# A transaction costs tens of microseconds: in WAL mode it is a write without a sync.
_MOST_UNWRITTEN: Final = 200
_WRITE_EVERY_S: Final = 0.2
_PAGE: Final = 1_000
_MOST_TEXT: Final = 500
_RUN: Final = "run"
_Values: TypeAlias = "tuple[object, ...] | dict[str, object]"
# The content of an item stays what it was when it is answered.
_PUT: Final = (
    "INSERT INTO item (id, signature, state, code, message, content, run, sketch) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET signature = excluded.signature, state = excluded.state, code = excluded.code,"
    " message = excluded.message, run = excluded.run, sketch = excluded.sketch"
)


def signature(item: Item) -> bytes:
    """16 bytes that change when the item does: its file's size and time, its bytes or address, its metadata."""
    hashed = blake2b(digest_size=16)
    picture = item.picture
    if isinstance(picture, bytes):
        hashed.update(b"bytes" + blake2b(picture, digest_size=16).digest())
    elif isinstance(picture, Path):
        try:
            status = os.stat(picture)  # noqa: PTH116 - for each of a million files
        except (OSError, ValueError):
            hashed.update(b"gone")
        else:
            hashed.update(b"file %d %d" % (status.st_size, status.st_mtime_ns))
    elif isinstance(picture, Stored):
        hashed.update(b"stored " + picture.version.encode("utf-8", "surrogatepass"))
    else:
        hashed.update(b"url " + picture.url.encode("utf-8", "surrogatepass"))
    hashed.update(b"\0" + json.dumps(item.metadata, sort_keys=True, default=repr).encode())
    return hashed.digest()


class Manifest:
    """The manifest of one run; a context manager, held by one process at a time.

    Attributes:
        path: its file.
        run: the number of the pass that is under way, see ``begin``.
        duplicates: those items whose content others have.

    Args:
        path: its file, made with its folder where it is not there.

    Raises:
        ManifestError: it cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._unwritten = 0
        self._written_at = time.monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = open_file(self.path)
        except (OSError, sqlite3.Error) as error:
            raise cannot_be_used(self.path, error) from None
        self.run = int(self.told(_RUN) or 0)
        self.duplicates = Duplicates(self._ask, self._change)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is not written, and let it go."""
        try:
            self.flush()
        finally:
            self._db.close()

    def known(self, id_: str) -> Known | None:
        """What is known of an item."""
        found = self._ask("SELECT signature, state, code, message, content FROM item WHERE id = ?", (id_,))
        if not found:
            return None
        ((now, number, code, message, content),) = found
        state = State(number)
        failed = error_for(code, message, retryable=state is State.TRANSIENT) if code else None
        return Known(now, state, failed, content)

    def begin(self) -> None:
        """A pass over the sources begins: what it sends and meets is told from what earlier ones did."""
        self.run += 1
        self.tell(_RUN, str(self.run))

    def sent(self, id_: str, now: bytes, content: bytes = b"") -> None:
        """An item goes out; ``content``: by which the same picture is known again, where that is wanted."""
        self._change(_PUT + ", content = excluded.content", (id_, now, State.SENT, "", "", content, self.run, ""))

    def unsent(self, id_: str) -> None:
        """An item that was to go out could not be read: it has not been tried."""
        self._change("UPDATE item SET run = 0 WHERE id = ?", (id_,))

    def answered(self, id_: str, now: bytes, error: RequestFailed | None = None, sketch: str = "") -> None:
        """An item has its answer.

        Args:
            id_: which.
            now: its signature.
            error: why it failed; None: its row is acknowledged.
            sketch: of that row's vector, see ``clipfleet.store.sketch``; empty where the worker told none.
        """
        state, code, text = State.DONE, "", ""
        if error is not None:
            state = State.TRANSIENT if is_transient(error) else State.PERMANENT
            code, text = error.code.value, error.message[:_MOST_TEXT]
        self._change(_PUT, (id_, now, state, code, text, b"", self.run, sketch))

    def has_content(self, id_: str, content: bytes) -> None:
        """The content of an item that is known already."""
        self._change("UPDATE item SET content = ? WHERE id = ?", (content, id_))

    def duplicate(self, id_: str, now: bytes, content: bytes) -> None:
        """An item is not sent, since another id has its content."""
        values = (id_, now, State.DUPLICATE, "", "", content, self.run, "")
        self._change(_PUT + ", content = excluded.content", values)

    def forget(self, ids: Sequence[str]) -> None:
        """Items are to be sent again, whatever is known of them."""
        for id_ in ids:
            self._change("DELETE FROM item WHERE id = ?", (id_,))

    def overwritten(self, ids: Sequence[str]) -> None:
        """Items whose rows hold something else: to be sent again, and never as duplicates, since a row is there."""
        for id_ in ids:
            self._change("UPDATE item SET signature = x'', state = 1, run = 0 WHERE id = ?", (id_,))

    def clear(self) -> None:
        """Forget everything."""
        self._change("DELETE FROM item", ())
        self._change("DELETE FROM about", ())
        self.flush()

    def told(self, name: str) -> str:
        """What was noted of the run itself under ``name``; empty where nothing was."""
        return "".join(value for (value,) in self._ask("SELECT value FROM about WHERE name = ?", (name,)))

    def tell(self, name: str, value: str) -> None:
        """Note something of the run itself; whoever can read it finds all that was noted before."""
        self._change("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    def flush(self) -> None:
        """Write what is not written.

        Raises:
            ManifestError: the disk is full, for one; what was not written is sent again by the next run.
        """
        unwritten, self._unwritten = self._unwritten, 0
        self._written_at = time.monotonic()
        if unwritten and self._db.in_transaction:
            self._ask("COMMIT")

    def counts(self) -> Counter[State]:
        """How many items are in which state."""
        return Counter({State(state): n for state, n in self._ask("SELECT state, count(*) FROM item GROUP BY 1")})

    def done(self) -> Iterator[list[str]]:
        """The ids of the items that are done, in order and in pages; changes may be made meanwhile."""
        for page in self.rows():
            yield [id_ for id_, _ in page]

    def rows(self) -> Iterator[list[tuple[str, str]]]:
        """As ``done``, each id with the sketch of its row's vector."""
        return self._pages("SELECT id, sketch FROM item WHERE state = 2 AND id > ? ORDER BY id LIMIT ?")

    def ids(self) -> Iterator[list[str]]:
        """The ids of all items, in order and in pages; changes may be made meanwhile."""
        for page in self._pages("SELECT id FROM item WHERE id > ? ORDER BY id LIMIT ?"):
            yield [id_ for (id_,) in page]

    def _pages(self, query: str) -> Iterator[list[Any]]:
        after = ""
        while page := self._ask(query, (after, _PAGE)):
            yield page
            after = page[-1][0]

    def _change(self, statement: str, values: _Values) -> None:
        if not self._unwritten:
            self._ask("BEGIN IMMEDIATE")
        self._ask(statement, values)
        self._unwritten += 1
        if self._unwritten >= _MOST_UNWRITTEN or time.monotonic() - self._written_at >= _WRITE_EVERY_S:
            self.flush()

    def _ask(self, statement: str, values: _Values = ()) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise cannot_be_used(self.path, error) from None


def manifest_name(collection: str, *run: object) -> str:
    """A file name that is the same for the same ``run``: where the rows go, sources, and options that pick items."""
    digest = blake2b(json.dumps(run, default=str).encode(), digest_size=6).hexdigest()
    return f"{collection}-{digest}.sqlite"
