"""What a run of ``index_corpus`` was asked for, cut into units and dealt out to shards."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.sources import TABLE_SUFFIXES, Columns, Failure, Item, Seen, Skip, SourceError, open_sources
from clipfleet.index.sources.braces import expand
from clipfleet.index.sources.folder import is_pattern, matches
from clipfleet.index.sources.remote import is_remote, remote_files
from clipfleet.index.sources.tar import TAR_SUFFIXES
from clipfleet.index.sources.video import VIDEO_SUFFIXES
from clipfleet.index.sources.zip import ZIP_SUFFIXES
from clipfleet.index.typed import typed
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from clipfleet.index.sources import Event, Source
    from clipfleet.index.typed import Typed

__all__ = ["Plan", "Unit", "digest", "identity", "is_digest", "make_plan"]

_DIGEST: Final = re.compile(r"[0-9a-f]{20}")


@dataclass(frozen=True, slots=True)
class Unit:
    """What is read from its beginning to its end in one go.

    Attributes:
        names: sources, as ``open_sources`` takes them.
        whole: whether one shard reads it alone (a tar or a zip: its members cannot be told apart without reading them
            all); else each shard takes those of its ids.
    """

    names: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's plan; the same for all of its shards.

    Attributes:
        units: what is to be read.
        collection: where the rows go.
        shards: how many.
        columns: of tables: url, path, id, root; as ``Columns``.
        step_s: how long a step sends for, seconds.
        patience_s: how long a shard may stand still, because nobody takes its pictures, before it gives up.
        alias: what shall stand for the collection in the end; empty = nothing.
        max_failed: unless more than this part of the pictures failed.
        fields: metadata keys of declared types, for which the collection has columns.
        before: what the alias stood for when the run began; empty = nothing, None = unknown.
    """

    units: tuple[Unit, ...]
    collection: str
    shards: int
    columns: dict[str, str]
    step_s: float
    patience_s: float
    alias: str = ""
    max_failed: float = 0.0
    fields: dict[str, str] = field(default_factory=dict)
    before: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def of(cls, value: dict[str, Any]) -> Plan:
        """From what was kept."""
        units = tuple(Unit(tuple(unit["names"]), unit["whole"]) for unit in value["units"])
        return cls(**{**value, "units": units})

    def units_of(self, shard: int) -> list[Unit]:
        """What a shard reads, in order."""
        return [unit for number, unit in enumerate(self.units) if not unit.whole or number % self.shards == shard]

    def opened(self, unit: Unit, root: Path) -> list[Typed]:
        """The sources of a unit.

        Raises:
            FileNotFoundError: one is gone.
            SourceError: a table has other columns than before.
        """
        return typed(_opened(unit, self.columns, root), self.fields)

    def events(self, unit: Unit, shard: int, root: Path) -> Generator[Event]:
        """What ``unit`` holds for ``shard``; names that nothing has any more are failures.

        Of a source that gives nothing at all, which may be a disk that is not mounted, that is said; but not of a tar
        or a zip, which can be read and be empty. What leads out of the root by a link, which may be newer than the
        plan, is a failure too.

        Raises:
            FileNotFoundError: a source is gone.
            SourceError: a table has other columns than before; a source has come to lie outside of the root.
        """
        own = os.path.realpath(root)
        for name in unit.names:
            if not is_remote(name):
                _inside(name, root)
        with Seen() as seen:
            for source in self.opened(unit, root):
                is_empty = not unit.whole
                for met in source.events(seen):
                    is_empty = is_empty and isinstance(met, Skip)
                    event = _kept_in(own, met)
                    if self._is_ours(event, unit, shard):
                        yield event
                if is_empty and shard == 0:
                    yield Skip(Skip.EMPTY, 0, source.about)

    def _is_ours(self, event: Event, unit: Unit, shard: int) -> bool:
        if unit.whole or self.shards == 1:
            return True
        match event:
            case Skip():
                return shard == 0  # every shard meets it, and it has no id
            case Item() | Failure():
                return identity(event)[-1] % self.shards == shard


def identity(event: Item | Failure) -> bytes:
    """Eight bytes that stand for an event in every run: two of five million meet with a chance of one in a million."""
    text = event.id if isinstance(event, Item) else f"\0{event.label}\0{event.error.code}"
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def make_plan(names: Sequence[str], root: Path, addresses: Sequence[str] = (), **options: Any) -> Plan:
    """The plan for ``names``, all of which lie in ``root`` or begin like one of ``addresses``.

    Raises:
        FileNotFoundError: a source does not exist.
        SourceError: it cannot be used so, or may not be.
    """
    columns = options["columns"]
    if unknown := set(columns) - {"url", "path", "id", "root"}:
        raise SourceError(f"columns are url, path, id and root, not {', '.join(sorted(unknown))}")
    if "root" in columns:
        _inside(columns["root"], root)
    plain: list[str] = []
    units: list[Unit] = []
    for name in names:
        low = name.lower()
        whole, is_table = low.endswith((*TAR_SUFFIXES, *ZIP_SUFFIXES)), low.endswith(TABLE_SUFFIXES)
        if is_remote(name):
            _allowed(name, addresses)
        else:
            _inside(name, root)
        if (whole or is_table) and not (root / name).is_dir():
            units += [Unit((file,), whole) for file in _files(name, root)]
        else:
            plain.append(name)
    if plain:
        units.insert(0, Unit(tuple(plain)))
    for unit in units:
        # What cannot be used is said at once and not by a step at night; a missing shard of a range alone may be.
        if not unit.whole:
            _opened(unit, columns, root)
    return Plan(units=tuple(units), **options)


def _opened(unit: Unit, columns: dict[str, str], root: Path) -> list[Source]:
    rooted: dict[str, Any] = {name: root / value if name == "root" else value for name, value in columns.items()}
    names = [name if is_remote(name) else os.fspath(root / name) for name in unit.names]
    return open_sources(names, Columns(**rooted))


def _files(name: str, root: Path) -> list[str]:
    """The files of a range or a pattern of shards, zips or tables; at least one exists."""
    if is_remote(name):
        return [str(file) for file in remote_files(name)]
    text = os.fspath(root / name)
    if os.path.lexists(text):
        return [name]
    try:
        each = [
            file
            for part in expand(text)
            for file in (map(os.fspath, matches(part)) if is_pattern(part) and not os.path.lexists(part) else [part])
        ]
    except ValueError as error:
        raise SourceError(str(error)) from None
    if not any(map(os.path.lexists, each)):
        raise FileNotFoundError(name)
    return [os.path.relpath(file, root) for file in each]


def _inside(name: str, root: Path) -> None:
    """Refuse what leads out of the root: whoever may send a task shall not read this host's files with it.

    A range is checked as what it stands for: ``{a,../b}`` has no part that is ``..``.
    """
    try:
        each = [name] if os.path.lexists(root / name) else list(expand(name))
    except ValueError as error:
        raise SourceError(str(error)) from None
    own = os.path.realpath(root)
    for text in each:
        if not text or ".." in Path(text).parts or not all(_is_below(own, path) for path in _named(text, root)):
            raise SourceError(f"{name or 'a source without a name'}: lies outside of CLIPFLEET_SOURCES_ROOT")


def _named(text: str, root: Path) -> list[Path]:
    """The folder in which a pattern begins, and the videos that match it; or the very file.

    What else matches is looked at when it is met: shards and tables are units of their own, pictures events.
    """
    if os.path.lexists(root / text):
        return [root / text]
    fixed = next(part for part in (Path(text), *Path(text).parents) if not is_pattern(os.fspath(part)))
    is_videos = is_pattern(text) and text.lower().endswith(VIDEO_SUFFIXES)
    return [root / fixed, *(matches(os.fspath(root / text)) if is_videos else [])]


def _is_below(own: str, path: Path) -> bool:
    return os.path.commonpath([os.path.realpath(path), own]) == own


def _kept_in(own: str, event: Event) -> Event:
    if isinstance(event, Item) and isinstance(event.picture, Path) and not _is_below(own, event.picture):
        out = error_for(ErrorCode.FETCH_FORBIDDEN, "a link leads out of CLIPFLEET_SOURCES_ROOT")
        return Failure(event.id, event.label, out)
    return event


def _allowed(name: str, addresses: Sequence[str]) -> None:
    """Refuse addresses of stores that this host may read and whoever sends a task may not."""
    try:
        each = list(expand(name))
    except ValueError as error:
        raise SourceError(str(error)) from None
    for text in each:
        known = any(f"{text}/".startswith(f"{address.rstrip('/')}/") for address in addresses)
        # fsspec reads "::" as a store within a store, of any kind.
        if not known or "::" in text or ".." in text.split("/"):
            raise SourceError(f"{name}: begins like no address of CLIPFLEET_SOURCES_ADDRESSES")


def digest(value: Any) -> str:
    """A short name for what was asked for."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=10).hexdigest()


def is_digest(value: object) -> bool:
    """Whether ``value`` may be one: what a caller says becomes part of a key."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
