"""Which keys of a filter no row has: a mistyped one fits nothing, or, where it is negated, everything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.cli.output import Output
    from clipfleet.producer import Client, NewRequest

__all__ = ["keys_of", "tell_unknown"]

_TEXT: Final = r"""(?:"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')"""
# As clipfleet.store.grammar has them, which is not here where nobody serves; what it refuses the fleet has refused.
_KEY: Final = re.compile(rf"(?P<key>metadata\s*\[\s*{_TEXT}\s*\]|[A-Za-z_][A-Za-z0-9_]*)|{_TEXT}|[0-9][0-9A-Za-z.]*")
_WORDS: Final = frozenset({"and", "or", "not", "in", "like", "exists", "true", "false"})
_MOST: Final = 16


def keys_of(expression: str) -> list[str]:
    """The keys that a filter asks for, as it spells them, each once."""
    found = (match["key"] for match in _KEY.finditer(expression))
    return list(dict.fromkeys(key for key in found if key is not None and key.lower() not in _WORDS))


def tell_unknown(
    out: Output, client: Client, collection: str, expression: str, *, by: Callable[[str], NewRequest]
) -> list[str]:
    """Name on stderr the keys that no row of a collection has, and return them.

    Args:
        out: where to.
        client: of the fleet.
        collection: of the rows.
        expression: the filter.
        by: what to ask for a filter: a request of the kind that the command makes anyway, which must change nothing.
    """
    keys, unknown = keys_of(expression)[:_MOST], list[str]()
    for key, result in zip(keys, client.map([by(f"exists {key}") for key in keys]), strict=True):
        # What cannot be told now is a hint less, and no more than that.
        if result.error is None and not (result.outputs.get("matched") or result.outputs.get("hits")):
            out.note(f"no row of {collection!r} has the key {key}: look at how it is spelled")
            unknown.append(key)
    return unknown
