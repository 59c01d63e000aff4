"""What of a filter can fit no row: a mistyped key, or a number where there is text. Negated, it fits every row.

Keys are asked for by requests that the command makes anyway, and not at all where its own hits have shown them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clipfleet.cli.output import Output
    from clipfleet.producer import Client, NewRequest
    from clipfleet.schemas.result import Result

__all__ = ["Kind", "kinds_of", "meets_all", "tell_unfit", "without_met"]

Kind: TypeAlias = Literal["text", "number", "truth"]

_TEXT: Final = r"""(?:"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')"""
# As clipfleet.store.grammar has them, which is not here where nobody serves; what it refuses the fleet has refused.
_NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
_TOKEN: Final = re.compile(
    rf"""metadata\s*\[\s*["'](?P<key>{_NAME})["']\s*\]|(?P<name>{_NAME})|(?P<text>{_TEXT})|[0-9][0-9A-Za-z.]*|[!|]"""
)
_WORDS: Final = frozenset({"and", "or", "not", "in", "like", "exists"})
# What fits each row whose value is of a kind; orderings compare like with like.
_ANY: Final[dict[Kind, str]] = {
    "text": '{0} >= ""',
    "number": "({0} < 0 or {0} >= 0)",
    "truth": "({0} == true or {0} == false)",
}
_CALLED: Final[dict[Kind, str]] = {"text": "text", "number": "a number", "truth": "true or false"}
_DECLARED: Final[dict[Kind, str]] = {"text": "str", "number": "float", "truth": "bool"}
_KINDS: Final[tuple[Kind, ...]] = ("text", "number", "truth")
_ANY_ROW: Final = 'id != ""'


def kinds_of(expression: str) -> dict[str, set[Kind]]:
    """The keys that a filter asks for, and what it compares each with; nothing by ``exists``. Every row has an id."""
    found: dict[str, set[Kind]] = {}
    key = ""
    for token in _TOKEN.finditer(expression):
        spelled, name, text = token["key"], token["name"], token["text"]
        if token[0] in {"!", "|"} or (name is not None and name.lower() in _WORDS):
            continue
        if spelled or (name is not None and name.lower() not in {"true", "false"}):
            key = spelled or name
            found.setdefault(key, set())
        else:
            kind: Kind = "truth" if name is not None else "number" if text is None else "text"
            found.setdefault(key, set()).add(kind)
    found.pop("id", None)
    return found


def meets_all(expression: str) -> bool:
    """Whether each row that a filter fits meets each of its conditions: it has no negation, and no ``or``.

    Then a row that it fits has each of its keys as what it is compared with, and nobody needs to be asked for that.
    """
    tokens = (token[0].lower() for token in _TOKEN.finditer(expression))
    return not any(token in {"or", "not", "!", "|"} for token in tokens)


def without_met(asked: Mapping[str, set[Kind]], metadata: Iterable[Mapping[str, Any]]) -> dict[str, set[Kind]]:
    """The keys of ``kinds_of`` that none of these rows has, or not as what they are compared with."""
    left = dict(asked)
    for row in metadata:
        if not left:
            break
        for key, kinds in list(left.items()):
            value = row.get(key)
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

    keys = list(asked)  # all of them: the one that is mistyped may be the last
    ways = [" or ".join(_fitting(key, kind) for kind in sorted(asked[key])) or _exists(key) for key in keys]
    unfit = [key for key, fits in zip(keys, whether(ways), strict=True) if fits is False] if keys else []
    if not unfit:
        return []
    looks = [look for key in unfit for look in (_exists(key), *(_fitting(key, kind) for kind in _KINDS))]
    has_rows, *seen = whether([_ANY_ROW, *looks])
    if has_rows is False:
        out.note(f"{collection!r} has no rows")
    wrong: list[str] = []
    for at, key in enumerate(() if has_rows is False else unfit):
        is_there, *kinds = seen[at * (1 + len(_KINDS)) :][: 1 + len(_KINDS)]
        if is_there is False:
            out.note(f"no row of {collection!r} has the key {key}: look at how it is spelled")
            wrong.append(f"no row has {key}")
        elif is_there:
            asks = " or ".join(_CALLED[kind] for kind in sorted(asked[key]))
            advice = _advice(key, asked[key], dict(zip(_KINDS, kinds, strict=True)))
            out.note(f"no row of {collection!r} has {asks} under {key}: {advice}")
            wrong.append(f"no row has {asks} under {key}")
    return wrong


def _exists(key: str) -> str:
    return f'exists metadata["{key}"]'


def _fitting(key: str, kind: Kind) -> str:
    return _ANY[kind].format(f'metadata["{key}"]')


def _advice(key: str, asked: set[Kind], has: Mapping[Kind, bool | None]) -> str:
    """What to do about a key that has values, but none of the kinds that are asked for."""
    if has["text"]:
        wanted = min(asked)
        plural = "numbers" if wanted == "number" else "true and false"
        return (
            "its values are text, as all of a CSV are that index is not told of; where they read as"
            f" {plural}, index into a new collection with --field {key}:{_DECLARED[wanted]}"
        )
    if asked == {"text"} and (has["number"] or has["truth"]):
        return "numbers, true and false are compared without quotes"
    others = [{"text": "text", "number": "numbers", "truth": "true or false"}[kind] for kind in _KINDS if has[kind]]
    if others:
        return f"its values are {' or '.join(others)}"
    if None in has.values():
        return "its values are others"
    return "its values, such as lists, are nothing that a filter can compare"


def _fits(result: Result) -> bool:
    return bool(result.outputs.get("matched") or result.outputs.get("hits"))


def _kind_of(value: object) -> Kind | None:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else None
