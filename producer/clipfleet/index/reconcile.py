"""Whether the store holds what the manifest says that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from clipfleet.index.sources import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clipfleet.index.manifest import Manifest
    from clipfleet.index.sources import Event, Seen, Source

__all__ = ["Reconciled", "forgotten", "reconcile"]

_SHOWN: Final = 10


@dataclass(slots=True)
class Reconciled:
    """What was found.

    Attributes:
        done: items that the manifest calls done.
        missing: how many of them have no row.
        first: some of the missing ids.
    """

    done: int = 0
    missing: int = 0
    first: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether each item that is done has a row."""
        return not self.missing


def reconcile(manifest: Manifest, present: Callable[[Sequence[str]], Iterable[str]]) -> Reconciled:
    """Ask the store for every item that is done, and forget those whose row is missing: the next run sends them.

    Memory follows a page of ids, and not their number.

    Args:
        manifest: of the run.
        present: which of some ids have a row.
    """
    found = Reconciled()
    for page in manifest.done():
        there = set(present(page))
        missing = [id_ for id_ in page if id_ not in there]
        manifest.forget(missing)
        found.done += len(page)
        found.missing += len(missing)
        found.first += missing[: _SHOWN - len(found.first)]
    manifest.flush()
    return found


def forgotten(sources: Sequence[Source], manifest: Manifest) -> list[Source]:
    """The sources with those items alone of which the manifest knows nothing."""
    return [_Forgotten(source, manifest) for source in sources]


class _Forgotten:
    """A source's items that are not in the manifest."""

    about = ""

    def __init__(self, source: Source, manifest: Manifest) -> None:
        self._source = source
        self._manifest = manifest

    def events(self, seen: Seen) -> Iterator[Event]:
        """Those items; the first pass has told everything else."""
        for event in self._source.events(seen):
            if isinstance(event, Item) and self._manifest.known(event.id) is None:
                yield event

    def count(self) -> Iterator[object]:
        """As many as the source has at most."""
        return self._source.count()
