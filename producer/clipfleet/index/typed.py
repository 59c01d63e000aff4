"""Metadata of declared types: text of tables becomes numbers, and what does not fit fails with its name."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.sources import Failure, Item
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clipfleet.index.sources import Event, Seen, Source

__all__ = ["FIELD_TYPES", "Typed", "typed"]

# With ".0": tables in which a number was missing somewhere are often written so.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}(\.0*)?")
_INT64: Final = range(-(2**63), 2**63)
_MOST_STR_BYTES: Final = 65_535  # of a typed column, see clipfleet.store.Field
_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def typed(sources: Sequence[Source], fields: Mapping[str, str]) -> list[Typed]:
    """The same sources, with these metadata keys as what they are declared.

    Args:
        sources: from ``open_sources``.
        fields: by key ``int`` (64 bits), ``float``, ``bool`` or ``str``. Text is read (``"2020"``, ``"yes"``), and is
            null where it is empty; whole numbers are taken for ``int`` and ``str`` however they are spelled.

    Raises:
        ValueError: a type that does not exist.
    """
    if unknown := sorted(set(fields.values()) - set(FIELD_TYPES)):
        raise ValueError(f"{', '.join(unknown)}: types are {', '.join(FIELD_TYPES)}")
    return [Typed(source, fields) for source in sources]


class Typed:
    """A source whose items' metadata have declared types.

    Attributes:
        met: the declared keys that some item had so far.
    """

    def __init__(self, source: Source, fields: Mapping[str, str]) -> None:
        self.met: set[str] = set()
        self._source = source
        self._fields = fields

    @property
    def about(self) -> str:
        """Which kind the source was taken for."""
        return self._source.about

    def events(self, seen: Seen) -> Iterator[Event]:
        """The source's events; an item that does not fit is a failure."""
        for event in self._source.events(seen):
            yield self._fitted(event) if isinstance(event, Item) else event

    def count(self) -> Iterator[object]:
        """As many as the source has."""
        return self._source.count()

    def _fitted(self, item: Item) -> Event:
        if not self._fields:
            return item
        metadata = dict(item.metadata)
        for name, kind in self._fields.items():
            if metadata.get(name) is None:
                continue
            self.met.add(name)
            given = metadata[name]
            try:
                metadata[name] = None if given == "" and kind != "str" else FIELD_TYPES[kind](given)
            except ValueError:
                text = f"metadata {name} is declared {kind}, and {given!r:.60} is no {kind}"
                return Failure(item.id, item.label, error_for(ErrorCode.BAD_REQUEST, text))
        return replace(item, metadata=metadata)


def _int(value: Any) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value.strip().partition(".")[0])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or value not in _INT64:
        raise ValueError
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError  # noqa: TRY004  as for all other values that do not fit
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    if not math.isfinite(number) or (isinstance(value, str) and "_" in value):
        raise ValueError
    return number


def _bool(value: Any) -> bool:
    found = _TRUTH.get(value.strip().lower()) if isinstance(value, str) else value
    if type(found) is int and found in {0, 1}:
        found = bool(found)
    if type(found) is not bool:
        raise ValueError
    return found


def _str(value: Any) -> str:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or len(text.encode("utf-8", "surrogatepass")) > _MOST_STR_BYTES:
        raise ValueError
    return text


FIELD_TYPES: Final[dict[str, Callable[[Any], Any]]] = {"int": _int, "float": _float, "bool": _bool, "str": _str}
