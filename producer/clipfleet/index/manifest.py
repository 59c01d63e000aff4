"""What became of each item, on disk: a run that is killed anywhere goes on from here.

One SQLite file a run, one row an item::

    (no row) --sent--> SENT --answered--> DONE | TRANSIENT | PERMANENT
                         ^                  |        |           |
                         |    changed, or its row is missing     |
                         +------------------+--next run--+-------+ changed, or asked for

The file is held by one process, and written in transactions of 0.2 s or of 200 rows. What is lost with the
last one is sent again, under the same id, and replaces itself: so nothing is skipped, and nothing is there twice.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum, IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from clipfleet.index.sources.item import Stored
from clipfleet.schemas.errors import ClipfleetError, ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clipfleet.index.sources import Item

__all__ = ["Known", "Manifest", "ManifestError", "ManifestHeld", "State", "Todo", "decide", "is_transient", "signature"]

_APPLICATION: Final = 0x636C6966  # "clif", in the file's header
_VERSION: Final = 1
# A transaction costs tens of microseconds: in WAL mode it is a write without a sync.
_MOST_UNWRITTEN: Final = 200
_WRITE_EVERY_S: Final = 0.2
_PAGE: Final = 1_000
_MOST_TEXT: Final = 500
# Verdicts on the fleet, its settings or its moment: the same picture may well be taken tomorrow.
_OF_THE_FLEET: Final = frozenset(
    {
        *(ErrorCode.EXPIRED, ErrorCode.CANCELLED, ErrorCode.FETCH_FORBIDDEN, ErrorCode.UNKNOWN_PIPELINE),
        *(ErrorCode.MODEL_MISMATCH, ErrorCode.STORE_FAILED),
    }
)


class ManifestError(ClipfleetError):
    """A manifest cannot be used: another run holds it, it cannot be written, or it is something else."""


class ManifestHeld(ManifestError):
    """Another run holds the manifest."""


class State(IntEnum):
    """What is known of an item. The numbers are in the files."""

    SENT = 1  # on its way, or it was when the run ended
    DONE = 2  # its row was acknowledged
    TRANSIENT = 3  # it failed of what passes: the next run sends it again
    PERMANENT = 4  # it failed of itself: it is sent again when it has changed, or when asked for


class Todo(Enum):
    """What to do with an item."""

    SEND = "send"
    LEAVE_DONE = "leave_done"
    LEAVE_FAILED = "leave_failed"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one item.

    Attributes:
        signature: what it was when it was sent, see ``signature``.
        state: what became of it.
        error: why it failed; None when it did not.
    """

    signature: bytes
    state: State
    error: RequestFailed | None = None


def decide(known: Known | None, now: bytes, *, retry_failed: bool = False) -> Todo:
    """What to do with an item whose signature is ``now``, by what is known of it."""
    if known is None or known.signature != now:
        return Todo.SEND
    if known.state is State.DONE:
        return Todo.LEAVE_DONE
    return Todo.LEAVE_FAILED if known.state is State.PERMANENT and not retry_failed else Todo.SEND


def is_transient(error: RequestFailed) -> bool:
    """Whether a failure passes by itself, or with a setting of the fleet, so that the next run sends the item again."""
    return error.retryable or error.code in _OF_THE_FLEET


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
            self._db = _open(self.path)
        except (OSError, sqlite3.Error) as error:
            raise _cannot(self.path, error) from None

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
        found = self._ask("SELECT signature, state, code, message FROM item WHERE id = ?", (id_,))
        if not found:
            return None
        ((now, number, code, message),) = found
        state = State(number)
        failed = error_for(code, message, retryable=state is State.TRANSIENT) if code else None
        return Known(now, state, failed)

    def sent(self, id_: str, now: bytes) -> None:
        """An item goes out."""
        self._put(id_, now, State.SENT)

    def answered(self, id_: str, now: bytes, error: RequestFailed | None = None) -> None:
        """An item has its answer: ``error``, or its row is acknowledged."""
        if error is None:
            self._put(id_, now, State.DONE)
        else:
            state = State.TRANSIENT if is_transient(error) else State.PERMANENT
            self._put(id_, now, state, error.code.value, error.message[:_MOST_TEXT])

    def forget(self, ids: Sequence[str]) -> None:
        """Items are to be sent again, whatever is known of them."""
        for id_ in ids:
            self._change("DELETE FROM item WHERE id = ?", (id_,))

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
        return self._pages(State.DONE)

    def ids(self) -> Iterator[list[str]]:
        """The ids of all items, in order and in pages; changes may be made meanwhile."""
        return self._pages(None)

    def _pages(self, state: State | None) -> Iterator[list[str]]:
        after = ""
        query = "SELECT id FROM item WHERE (?1 IS NULL OR state = ?1) AND id > ?2 ORDER BY id LIMIT ?3"
        while page := [id_ for (id_,) in self._ask(query, (state, after, _PAGE))]:
            yield page
            after = page[-1]

    def _put(self, id_: str, now: bytes, state: State, code: str = "", message: str = "") -> None:
        self._change("INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?, ?)", (id_, now, state, code, message))

    def _change(self, statement: str, values: tuple[object, ...]) -> None:
        if not self._unwritten:
            self._ask("BEGIN IMMEDIATE")
        self._ask(statement, values)
        self._unwritten += 1
        if self._unwritten >= _MOST_UNWRITTEN or time.monotonic() - self._written_at >= _WRITE_EVERY_S:
            self.flush()

    def _ask(self, statement: str, values: tuple[object, ...] = ()) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _cannot(self.path, error) from None


def _open(path: Path) -> sqlite3.Connection:
    # Generators over it may be closed by the garbage collector, in any thread.
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # Exclusive: a second run with this manifest is refused, and a killed one lets go of it with its process.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        (found,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and (found, version) != (_APPLICATION, _VERSION):
            raise ManifestError(f"{path}: is no manifest of this release; name another file with --manifest")
        db.execute("PRAGMA journal_mode=WAL")
        # A power cut may lose the last ones, which is sent again; a killed process loses nothing that was written.
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA cache_size=-16000")
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "CREATE TABLE IF NOT EXISTS item (id TEXT PRIMARY KEY, signature BLOB NOT NULL, state INTEGER NOT NULL,"
            " code TEXT NOT NULL, message TEXT NOT NULL) WITHOUT ROWID"
        )
        db.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute(f"PRAGMA application_id={_APPLICATION}")
        db.execute(f"PRAGMA user_version={_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


def manifest_name(collection: str, *run: object) -> str:
    """A file name that is the same for the same ``run``: where the rows go, sources, and options that pick items."""
    digest = blake2b(json.dumps(run, default=str).encode(), digest_size=6).hexdigest()
    return f"{collection}-{digest}.sqlite"


def _cannot(path: Path, error: Exception) -> ManifestError:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return ManifestHeld(f"{path}: another run holds this manifest")
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ManifestError(f"{path}: cannot be used as a manifest: {text}")
