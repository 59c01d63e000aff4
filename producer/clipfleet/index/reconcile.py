"""Whether the store holds what the manifest says that it holds: each id, with its own picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from clipfleet.index.sources import Item
from clipfleet.index.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clipfleet.index.manifest import Manifest
    from clipfleet.index.sources import Event, Seen, Source

__all__ = ["Chosen", "Reconciled", "alone", "forgotten", "reconcile"]

_SHOWN: Final = 10


@dataclass(slots=True)
class Reconciled:
    """What was found.

    Attributes:
        done: items that the manifest calls done.
        missing: how many of them have no row.
        changed: how many have a row with another picture in it: somebody else has written under the same id.
        twins: duplicates, which were not sent, that have a row all the same: of an earlier life of the collection, of
            which this manifest knows nothing, so that it may hold an older picture.
        unknown: how many have a row of which nobody noted what is in it, as workers of an earlier release.
        first: some of the ids that are missing or changed, or have such a row.
    """

    done: int = 0
    missing: int = 0
    changed: int = 0
    twins: int = 0
    unknown: int = 0
    first: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether each item that is done has a row, and its own picture in it, and no other one has any."""
        return not self.missing and not self.changed and not self.twins


def reconcile(manifest: Manifest, holds: Callable[[Mapping[str, str]], Mapping[str, bool]]) -> Reconciled:
    """Ask the store for every item that is done, and forget those that it does not hold: the next run sends them.

    What was a duplicate of one of these is to be sent, too, since nobody knows whether that one will come again; and so
    is a duplicate that has a row.
    Memory follows a page of ids, and not their number.

    Args:
        manifest: of the run.
        holds: given ids and what was noted of their rows, tells of each that has a row whether that is in it.
    """
    found = Reconciled()
    for rows in manifest.rows():
        page = dict(rows)
        there = holds(page)
        lost = [id_ for id_ in page if not there.get(id_)]
        manifest.forget([id_ for id_ in lost if id_ not in there])
        manifest.overwritten([id_ for id_ in lost if id_ in there])
        found.done += len(page)
        found.missing += len(page) - len(there)
        found.changed += sum(not right for right in there.values())
        found.unknown += sum(not page[id_] for id_ in there)
        found.first += lost[: _SHOWN - len(found.first)]
    for ids in manifest.duplicates.ids():
        there = holds(dict.fromkeys(ids, ""))
        twins = [id_ for id_ in ids if id_ in there]
        manifest.overwritten(twins)
        found.twins += len(twins)
        found.first += twins[: _SHOWN - len(found.first)]
    manifest.duplicates.leave_alone(run=manifest.run)
    manifest.flush()
    return found


def forgotten(sources: Sequence[Source], manifest: Manifest) -> list[Source]:
    """The sources with those items alone of which the manifest knows nothing, or that are to be sent after all.

    Those are what is alone, and what somebody has overwritten: whose signature nothing has.
    """

    def is_wanted(item: Item) -> bool:
        known = manifest.known(item.id)
        return known is None or known.state is State.ALONE or not known.signature

    return [Chosen(source, is_wanted) for source in sources]


def alone(sources: Sequence[Source], manifest: Manifest) -> list[Source]:
    """The sources with those items alone whose picture was another's, which has gone."""

    def is_wanted(item: Item) -> bool:
        known = manifest.known(item.id)
        return known is not None and known.state is State.ALONE

    return [Chosen(source, is_wanted) for source in sources]


class Chosen:
    """A source's items that are wanted once more; a pass before has told everything else."""

    about = ""

    def __init__(self, source: Source, is_wanted: Callable[[Item], bool]) -> None:
        self._source = source
        self._is_wanted = is_wanted

    def events(self, seen: Seen) -> Iterator[Event]:
        """Those items."""
        for event in self._source.events(seen):
            if isinstance(event, Item) and self._is_wanted(event):
                yield event

    def count(self) -> Iterator[object]:
        """As many as the source has at most."""
        return self._source.count()
