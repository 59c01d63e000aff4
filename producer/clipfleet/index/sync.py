"""Which pictures have left the corpus, those that the manifest knows and a whole run has not met; and what hid some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, Self

from clipfleet.index.sources import Failure, Hides, Item, Seen, Skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clipfleet.index.manifest import Manifest
    from clipfleet.index.sources import Event, Source

__all__ = ["Unseen", "Visited"]

_MOST_KEPT: Final = 1_000


class _Notes(Protocol):
    """Somebody who is told what sources give."""

    def note(self, event: Event) -> None:
        """One event of a source."""

    def ended(self, source: Source, *, items: int) -> None:
        """A source has come to its end."""


class Unseen:
    """Whether a run may have missed any number of pictures, and said of it no more than one failure, or nothing.

    So it is with a folder that cannot be read, a link that leads nowhere, and a source or folder that gave nothing at
    all (a disk that is not mounted). Shards and tables that break off are in the report, as ``incomplete``.

    Attributes:
        why: what was missed first; empty where all was seen.
    """

    def __init__(self) -> None:
        self.why = ""

    def over(self, sources: Sequence[Source]) -> list[Source]:
        """The same sources; what they give is looked at."""
        return [_Noted(source, self) for source in sources]

    def note(self, event: Event) -> None:
        """One event of a source."""
        if isinstance(event, Skip) and event.reason == Skip.EMPTY:
            self.why = self.why or f"{event.label}: gave nothing at all"
        elif isinstance(event, Failure) and event.hides is Hides.BELOW:
            self.why = self.why or f"{event.label}: {event.error.message}"

    def ended(self, source: Source, *, items: int) -> None:
        """A source has come to its end."""
        if not items:
            self.why = self.why or _nothing_of(source)


class Visited:
    """The ids that a run has met, on disk; a context manager.

    What could not be read has not left: an unreadable folder, or a link that leads nowhere, keeps everything below it;
    a shard or a table that is broken, a row of which nobody knows the id, or a source that gave nothing at all (a disk
    that is not mounted), keeps everything.
    """

    def __init__(self) -> None:
        self._ids = Seen()
        self._kept: list[str] = []
        self._doubt = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.__exit__()

    @property
    def doubt(self) -> str:
        """Why it cannot be told what has left; empty when it can."""
        return self._doubt

    def over(self, sources: Sequence[Source]) -> list[Source]:
        """The same sources; what they give is noted."""
        return [_Noted(source, self) for source in sources]

    def gone(self, manifest: Manifest) -> Iterator[list[str]]:
        """The ids that have left, in pages; none while there is doubt."""
        if not self._doubt:
            below = tuple(f"{kept}/" for kept in self._kept)
            for page in manifest.ids():
                if left := [id_ for id_ in page if id_ not in self._ids and not id_.startswith(below)]:
                    yield left

    def note(self, event: Event) -> None:
        """One event of a source."""
        if isinstance(event, Item | Failure):
            self._ids.add(event.id, b"")
        if isinstance(event, Skip) and event.reason == Skip.EMPTY:
            self._doubt = self._doubt or f"{event.label}: gave nothing at all"
        elif isinstance(event, Failure) and (event.whole or event.hides is not Hides.ITSELF):
            if event.hides is Hides.BELOW and not event.whole and event.id != "." and len(self._kept) < _MOST_KEPT:
                self._kept.append(event.id)
            else:
                self._doubt = self._doubt or f"{event.label}: {event.error.message}"

    def ended(self, source: Source, *, items: int) -> None:
        """A source has come to its end."""
        if not items:
            self._doubt = self._doubt or _nothing_of(source)


def _nothing_of(source: Source) -> str:
    return f"a source gave nothing at all{f' ({source.about})' if source.about else ''}"


class _Noted:
    """A source whose events are noted."""

    def __init__(self, source: Source, notes: _Notes) -> None:
        self._source = source
        self._notes = notes

    @property
    def about(self) -> str:
        """Which kind the source was taken for."""
        return self._source.about

    def events(self, seen: Seen) -> Iterator[Event]:
        """The source's events."""
        items = 0
        for event in self._source.events(seen):
            items += isinstance(event, Item)
            self._notes.note(event)
            yield event
        self._notes.ended(self._source, items=items)

    def count(self) -> Iterator[object]:
        """As many as the source has."""
        return self._source.count()
