"""The file of a manifest: opened for one process alone, made where it is not there, brought up to this release."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from clipfleet.schemas.errors import ClipfleetError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ManifestError", "ManifestHeld", "cannot_be_used", "open_file"]

_APPLICATION: Final = 0x636C6966  # "clif", in the file's header
_VERSION: Final = 2
# More would be no quicker: the system keeps the file in memory anyway, for as long as nobody else needs the room.
_CACHE_KIB: Final = 2_000
_ITEM: Final = (
    (
        "CREATE TABLE item (id TEXT PRIMARY KEY, signature BLOB NOT NULL, state INTEGER NOT NULL,"
        " code TEXT NOT NULL, message TEXT NOT NULL) WITHOUT ROWID"
    ),
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
# What each version has more than the one before.
_STEPS: Final = {
    0: _ITEM,
    1: (
        "ALTER TABLE item ADD COLUMN content BLOB NOT NULL DEFAULT x''",
        "ALTER TABLE item ADD COLUMN run INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE item ADD COLUMN sketch TEXT NOT NULL DEFAULT ''",
        # Of those alone whose content is known: a run that does not look for duplicates pays nothing for it.
        "CREATE INDEX item_content ON item (content, state) WHERE content <> x''",
    ),
}


class ManifestError(ClipfleetError):
    """A manifest cannot be used: another run holds it, it cannot be written, or it is something else."""


class ManifestHeld(ManifestError):
    """Another run holds the manifest."""


def open_file(path: Path) -> sqlite3.Connection:
    """The file, held exclusively, with this release's tables.

    Raises:
        ManifestError: it is no manifest, or a later release's.
        sqlite3.Error: it cannot be opened, read or written.
    """
    # Generators over it may be closed by the garbage collector, in any thread.
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # Exclusive: a second run with this manifest is refused, and a killed one lets go of it with its process.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        (found,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and (found != _APPLICATION or not 0 < version <= _VERSION):
            raise ManifestError(f"{path}: is no manifest of this release; name another file with --manifest")
        db.execute("PRAGMA journal_mode=WAL")
        # A power cut may lose the last ones, which is sent again; a killed process loses nothing that was written.
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        _bring_up(db, version if tables else 0)
    except BaseException:
        db.close()
        raise
    return db


def _bring_up(db: sqlite3.Connection, version: int) -> None:
    """Make what this release has more; all of it or nothing, whenever the process ends."""
    db.execute("BEGIN IMMEDIATE")
    for step in range(version, _VERSION):
        for statement in _STEPS[step]:
            db.execute(statement)
    db.execute(f"PRAGMA application_id={_APPLICATION}")
    db.execute(f"PRAGMA user_version={_VERSION}")
    db.execute("COMMIT")


def cannot_be_used(path: Path, error: Exception) -> ManifestError:
    """What is said of a file that cannot be opened or written."""
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return ManifestHeld(f"{path}: another run holds this manifest")
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ManifestError(f"{path}: cannot be used as a manifest: {text}")
