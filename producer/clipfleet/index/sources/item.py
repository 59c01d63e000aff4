"""What a source of pictures gives: one stream of items, failures and things passed over, in the order found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from clipfleet.index.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

    from clipfleet.index.sources.seen import Seen
    from clipfleet.producer.requests import Url
    from clipfleet.schemas.errors import RequestFailed

__all__ = ["Event", "Failure", "Hides", "Item", "Place", "Skip", "Source", "SourceError", "Stored", "opened"]


class SourceError(ValueError):
    """A source cannot be used as it was asked for: no such column, a package is missing."""


class Place(Protocol):
    """A file that is not on this machine's disks."""

    @property
    def name(self) -> str:
        """Its name."""

    def open(self) -> BufferedReader:
        """Open it for reading; seekable.

        Raises:
            RequestFailed: it cannot be.
        """


def opened(place: Path | Place) -> BufferedReader:
    """A file, here or elsewhere, opened for reading.

    Raises:
        RequestFailed: it cannot be.
    """
    return open_regular(place) if isinstance(place, Path) else place.open()


@dataclass(frozen=True, slots=True)
class Stored:
    """A picture that is not read before it is sent.

    Attributes:
        read: its bytes; raises ``RequestFailed`` when there are none to be had.
        version: a text that changes when the bytes do.
        far: whether reading it means to wait for others: then several are read at once.
    """

    read: Callable[[], bytes]
    version: str
    far: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """One picture to be indexed.

    Attributes:
        id: its row's id, the same in every run.
        label: where it is, for people: a path, ``shard.tar/0001.jpg``, ``urls.csv:7``.
        picture: its bytes; or a file of this machine, not read yet; or an address that a worker fetches; or what is
            read elsewhere when its turn comes.
        metadata: its row's metadata.
        size: how many bytes the picture has, where that is known before it is read.
    """

    id: str
    label: str
    picture: bytes | Path | Url | Stored
    metadata: dict[str, Any] = field(default_factory=dict)
    size: int | None = None


class Hides(Enum):
    """Which rows a failure says nothing of: they may be there as before, and must not be taken for gone."""

    ITSELF = "itself"  # the one whose id it has
    BELOW = "below"  # all whose ids begin with its own and a slash: a folder
    ANY = "any"  # nobody knows which


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that cannot be indexed; what comes after it goes on.

    Attributes:
        id: the row's id where it is known, else what names the thing best.
        label: where it is, for people.
        error: why.
        whole: whether it is said of a whole shard or table, which is then not done however many items it gave.
        hides: what could not be seen for it.
    """

    id: str
    label: str
    error: RequestFailed
    whole: bool = False
    hides: Hides = Hides.ITSELF


@dataclass(frozen=True, slots=True)
class Skip:
    """What is passed over on purpose, and counted.

    Attributes:
        reason: ``OTHER``, ``DUPLICATE`` or ``EMPTY``.
        count: how many.
        label: which one, of what is empty.
    """

    reason: str
    count: int = 1
    label: str = ""

    OTHER = "other"  # not a picture, nor what belongs to one
    DUPLICATE = "duplicate"  # the same id and the same picture once more
    EMPTY = "empty"  # one of several folders has nothing in it: perhaps its disk is not mounted; counts as none


Event: TypeAlias = "Item | Failure | Skip"


class Source(Protocol):
    """Pictures of one kind of place. Nothing is listed into memory, and no item's fault ends the stream."""

    @property
    def about(self) -> str:
        """One line for people: which kind it was taken for, and what was guessed; empty where nothing was."""

    def events(self, seen: Seen) -> Iterator[Event]:
        """Everything there is; ids that ``seen`` holds already are not given again."""

    def count(self) -> Iterator[object]:
        """Something for each item there may be, more cheaply than ``events``; for the time left.

        Raises:
            OSError: it cannot be told cheaply.
        """
