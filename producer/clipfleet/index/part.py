"""One part of N of what sources give: several hosts, or several processes, index one corpus together."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, TypeGuard

from clipfleet.index.sources import Failure, Hides, Item, SourceError, Tars, Videos, Zips

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clipfleet.index.sources import Event, Seen, Source

__all__ = ["Part", "by_file", "part_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """Part ``number`` of ``of``, counted from 1; whoever takes the same part takes the same items.

    Raises:
        SourceError: there is no such part.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise SourceError(f"part {self.number} of {self.of}: the first is 1, the last {self.of}")

    @classmethod
    def parse(cls, text: str) -> Part:
        """``2/3``.

        Raises:
            SourceError: it is not of that kind.
        """
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and text.isascii() and len(text) < 20):
            raise SourceError(f"{text!r}: a part is I/N, such as 1/3, 2/3 and 3/3")
        return cls(int(number), int(of))

    def holds(self, id_: str) -> bool:
        """Whether an id belongs to this part."""
        digest = blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.of == self.number - 1


def part_of(sources: Sequence[Source], part: Part) -> list[Source]:
    """What one part of N has to do: of shards, zips and videos every Nth file, else the items by their ids' hash.

    They are counted over all sources. Two files with the same name, in two folders, are one part's: which of them holds
    an id that both have cannot be told by two.
    """
    numbers: dict[str, int] = {}
    parts: list[Source] = []
    for source in sources:
        if not by_file(source):
            parts.append(_PartOf(source, part))
            continue
        kept = [numbers.setdefault(stem, len(numbers)) % part.of == part.number - 1 for stem in source.stems()]
        if any(kept):
            parts.append(source.only(kept))
    return parts


def by_file(source: Source) -> TypeGuard[Tars | Videos | Zips]:
    """Whether a source is divided by its files: which part has which one changes with their number."""
    return isinstance(source, Tars | Videos | Zips)


class _PartOf:
    """The items of a source whose ids belong to one part."""

    def __init__(self, source: Source, part: Part) -> None:
        self._source = source
        self._part = part

    @property
    def about(self) -> str:
        """Which kind the source was taken for."""
        return self._source.about

    def events(self, seen: Seen) -> Iterator[Event]:
        """The part's items and failures. What is skipped, and what may hide items of any part, each part tells."""
        for event in self._source.events(seen):
            common = isinstance(event, Failure) and (event.whole or event.hides is not Hides.ITSELF)
            if common or not isinstance(event, Item | Failure) or self._part.holds(event.id):
                yield event

    def count(self) -> Iterator[object]:
        """About as many as belong to the part."""
        return islice(self._source.count(), self._part.number - 1, None, self._part.of)
