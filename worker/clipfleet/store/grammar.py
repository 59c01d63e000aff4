r"""The filter expressions that people type, read by our own parser into the tree of ``filters``.

::

    expression = conjunction {("or" | "||") conjunction}
    conjunction = negation {("and" | "&&") negation}
    negation = ("not" | "!") negation | "(" expression ")" | condition
    condition = field ("==" | "!=" | "<" | "<=" | ">" | ">=") value
              | field ["not"] "in" "[" [value {"," value}] "]"
              | field ["not"] "like" text
              | "exists" field
    field = name | "metadata" "[" text "]"
    value = text | number | "true" | "false"

Words are case-insensitive, names are not; text stands in double or single quotes, escapes are ``\\ \" \' \n \r \t``.
It looks like Milvus' own language on purpose, and holds nothing of it that could reach beyond a row's metadata.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from clipfleet.store.filters import COMPARISONS, MAX_DEPTH, And, Exists, Node, Not, Or, condition, field_name, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["parse_expression"]

_MAX_LENGTH: Final = 65_536
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<text>"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')
      | (?P<mark>==|!=|<=|>=|<>|&&|\|\||[<>=!()\[\],])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "r": "\r", "t": "\t"}
_SAME: Final = {"&&": "and", "||": "or", "!": "not"}
# What other languages, SQL before all, write for ours: never read, but answered with ours.
_OURS: Final = {"=": "equal is ==", "<>": "unequal is !=", "is": "there is exists NAME, and not exists NAME"}
_WORDS: Final = frozenset({"and", "or", "not", "in", "like", "exists", "true", "false"})


class _Token(NamedTuple):
    kind: str  # word, name, number, text, mark, end
    text: str
    position: int


def parse_expression(source: str) -> Node:
    """The tree of an expression.

    Raises:
        RequestFailed: ``bad_request`` with the position of what could not be read.
    """
    if len(source) > _MAX_LENGTH:
        raise refuse(f"longer than {_MAX_LENGTH} characters")
    parser = _Parser(_tokens(source))
    node = parser.expression(0)
    parser.expect("end", "")
    return node


def _tokens(source: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(source, position)
        if match is None:
            at = position + len(source[position:]) - len(source[position:].lstrip())
            raise refuse(f"cannot read {source[at : at + 20]!r} at position {at}")
        kind = str(match.lastgroup)
        text = match.group(kind)
        if kind == "name" and text.lower() in _WORDS:
            kind, text = "word", text.lower()
        elif text in _SAME:
            kind, text = "word", _SAME[text]
        tokens.append(_Token(kind, text, match.start(match.lastgroup or 0)))
        position = match.end()
    return tokens


class _Parser:
    """One expression, read from left to right with one token of foresight."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def expression(self, depth: int) -> Node:
        items = self._chain("or", self._conjunction, depth)
        return items[0] if len(items) == 1 else Or(items)

    def expect(self, kind: str, text: str) -> _Token:
        token = self._tokens[self._next]
        if token.kind != kind or (text and token.text != text):
            self._refuse(f"expected {text or kind}")
        self._next += 1
        return token

    def _conjunction(self, depth: int) -> Node:
        items = self._chain("and", self._negation, depth)
        return items[0] if len(items) == 1 else And(items)

    def _chain(self, word: str, part: Callable[[int], Node], depth: int) -> tuple[Node, ...]:
        items = [part(depth)]
        while self._take("word", word):
            items.append(part(depth))
        return tuple(items)

    def _negation(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise refuse(f"nested deeper than {MAX_DEPTH}")
        if self._take("word", "not"):
            return Not(self._negation(depth + 1))
        if self._take("mark", "("):
            node = self.expression(depth + 1)
            self.expect("mark", ")")
            return node
        if self._take("word", "exists"):
            return Exists(self._field())
        return self._condition()

    def _condition(self) -> Node:
        name = self._field()
        negated = "not " if self._take("word", "not") else ""
        token = self._tokens[self._next]
        if token.text in {"in", "like"} and token.kind == "word":
            self._next += 1
            operand: object = self._list() if token.text == "in" else self._value()
            return condition(name, negated + token.text, operand)
        if negated or token.text not in COMPARISONS:
            ours = f" ({_OURS[token.text.lower()]})" if token.text.lower() in _OURS else ""
            self._refuse(f"expected {'in or like' if negated else 'a comparison'} after {name}{ours}")
        self._next += 1
        return condition(name, token.text, self._value())

    def _field(self) -> str:
        name = self.expect("name", "").text
        if name == "metadata" and self._take("mark", "["):
            name = field_name(_unescape(self.expect("text", "")))
            self.expect("mark", "]")
        return field_name(name)

    def _list(self) -> list[object]:
        self.expect("mark", "[")
        values: list[object] = []
        while not self._take("mark", "]"):
            if values:
                self.expect("mark", ",")
            values.append(self._value())
        return values

    def _value(self) -> object:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "text":
            return _unescape(token)
        if token.kind == "number":
            # Beyond a few thousand digits int() itself refuses; no store takes more than 64 bits anyway.
            return int(token.text) if token.text.lstrip("+-").isdigit() and len(token.text) < 40 else float(token.text)
        if token.kind == "word" and token.text in {"true", "false"}:
            return token.text == "true"
        self._next -= 1
        return self._refuse("expected text in quotes, a number, true or false")

    def _take(self, kind: str, text: str) -> bool:
        token = self._tokens[self._next]
        if token.kind != kind or token.text != text:
            return False
        self._next += 1
        return True

    def _refuse(self, what: str) -> NoReturn:
        token = self._tokens[self._next]
        found = f"{token.text[:40]!r} at position {token.position}" if token.text else "the end"
        raise refuse(f"{what}, found {found}")


def _unescape(token: _Token) -> str:
    def one(match: re.Match[str]) -> str:
        letter = match.group(1)
        if letter not in _ESCAPED:
            raise refuse(f"unknown escape \\{letter} in the text at position {token.position}")
        return _ESCAPED[letter]

    return _ESCAPE.sub(one, token.text[1:-1])
