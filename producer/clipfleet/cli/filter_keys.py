"""What of a filter can fit no row: a mistyped key, or a number where there is text. Negated, it fits every row.

Keys are asked for by requests that the command makes anyway, and not at all where its own hits have shown them.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clipfleet.cli.output import Output
    from clipfleet.producer import Client, NewRequest
    from clipfleet.schemas.result import Result

__all__ = ["Kind", "kinds_of", "tell_unfit", "without_met"]

Kind: TypeAlias = Literal["text", "number", "truth"]

_TEXT: Final = r"""(?:"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')"""
# As clipfleet.store.grammar has them, which is not here where nobody serves; what it refuses the fleet has refused.
_TOKEN: Final = re.compile(
    rf"(?P<key>metadata\s*\[\s*{_TEXT}\s*\]|[A-Za-z_][A-Za-z0-9_]*)|(?P<text>{_TEXT})|[0-9][0-9A-Za-z.]*"
)
_WORDS: Final = frozenset({"and", "or", "not", "in", "like", "exists"})
_MOST: Final = 16
# What fits each row whose value is of a kind; orderings compare like with like.
_ANY: Final[dict[Kind, str]] = {
    "text": '{0} >= ""',
    "number": "({0} < 0 or {0} >= 0)",
    "truth": "({0} == true or {0} == false)",
}
_CALLED: Final[dict[Kind, str]] = {"text": "text", "number": "a number", "truth": "true or false"}
_DECLARED: Final[dict[Kind, str]] = {"text": "str", "number": "float", "truth": "bool"}


def kinds_of(expression: str) -> dict[str, set[Kind]]:
    """The keys that a filter asks for, as it spells them, and what it compares each with; nothing by ``exists``."""
    found: dict[str, set[Kind]] = {}
    key = ""
    for token in _TOKEN.finditer(expression):
        name, text = token["key"], token["text"]
        if name is None or name.lower() in {"true", "false"}:
            kind: Kind = "truth" if name is not None else "number" if text is None else "text"
            found.setdefault(key, set()).add(kind)
        elif name.lower() not in _WORDS:
            key = name
            found.setdefault(key, set())
    return found


def without_met(asked: Mapping[str, set[Kind]], metadata: Iterable[Mapping[str, Any]]) -> dict[str, set[Kind]]:
    """The keys of ``kinds_of`` that none of these rows has, or not as what they are compared with."""
    left = dict(asked)
    for row in metadata:
        if not left:
            break
        for key, kinds in list(left.items()):
            value = row.get(_name_of(key))
            if value is not None and (not kinds or _kind_of(value) in kinds):
                del left[key]
    return left


def tell_unfit(
    out: Output, client: Client, collection: str, asked: Mapping[str, set[Kind]], *, by: Callable[[str], NewRequest]
) -> list[str]:
    """Name on stderr each key that no row of a collection has as the filter asks for it, and return what is wrong.

    Args:
        out: where to.
        client: of the fleet.
        collection: of the rows.
        asked: from ``kinds_of``.
        by: what to ask for a filter: a request of the kind that the command makes anyway, which must change nothing.
    """

    def whether(expressions: Iterable[str]) -> list[bool | None]:
        # What cannot be told now is a hint less, and no more than that.
        return [None if each.error is not None else _fits(each) for each in client.map(map(by, expressions))]

    keys = list(asked)[:_MOST]
    ways = [" or ".join(_ANY[kind].format(key) for kind in sorted(asked[key])) or f"exists {key}" for key in keys]
    unfit = [key for key, fits in zip(keys, whether(ways), strict=True) if fits is False]
    there = whether([f"exists {key}" for key in unfit])
    text = whether([_ANY["text"].format(key) for key in unfit])
    wrong: list[str] = []
    for key, is_there, is_text in zip(unfit, there, text, strict=True):
        if is_there is False:
            out.note(f"no row of {collection!r} has the key {key}: look at how it is spelled")
            wrong.append(f"no row has {key}")
        elif is_there:
            asks = " or ".join(_CALLED[kind] for kind in sorted(asked[key]))
            out.note(f"no row of {collection!r} has {asks} under {key}: {_advice(key, asked[key], is_text=is_text)}")
            wrong.append(f"no row has {asks} under {key}")
    return wrong


def _advice(key: str, kinds: set[Kind], *, is_text: bool | None) -> str:
    if is_text:
        declared = f"--field {_name_of(key)}:{_DECLARED[min(kinds)]}"
        return (
            "its values are text, as all of a CSV are that index is not told of; index into a new collection with"
            f" {declared}"
        )
    return "numbers, true and false are compared without quotes" if kinds == {"text"} else "its values are others"


def _fits(result: Result) -> bool:
    return bool(result.outputs.get("matched") or result.outputs.get("hits"))


def _kind_of(value: object) -> Kind | None:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else None


def _name_of(key: str) -> str:
    """The metadata's own name of a key that may be spelled ``metadata["..."]``, whose escapes are Python's."""
    _, bracket, text = key.partition("[")
    return str(ast.literal_eval(text.rstrip("] \t\r\n").lstrip())) if bracket else key
