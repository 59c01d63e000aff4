"""Filters: what users may ask of metadata, and what of it reaches Milvus.

A filter is a mapping (``{"year": {">=": 2020}, "tag": "cat"}``) or an expression
(``year >= 2020 and tag == "cat"``, see ``grammar``), also inside ``$and``, ``$or`` and ``$not``. Both become the same
small tree, and only the tree is compiled: a user's text is never passed on, field names are allow-listed, values are
escaped literals (Milvus Lite and Milvus 2.3 have no filter templates). So a filter that a service adds with ``combine``
or ``$and`` cannot be talked around.

Stores disagree about rows that lack a key: Lite reasons with three values, the server with two. We fix two: **a
condition on a missing key is false, and its negation true** (so ``year != 2020`` finds rows without a year). For that,
negations are pushed down to the conditions, and a negated condition spells out "missing or ...". Orderings compare
like with like: text with text, numbers with numbers; anything else is false, and stays false when negated.

Where stores still differ, on undeclared keys alone: a key that is explicitly null counts as present on Milvus 2.3, and
Lite takes ``true`` for 1. Declared fields (``Field``) have neither exception.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

__all__ = ["And", "Compare", "Exists", "Filter", "In", "Like", "Node", "Not", "Or", "Value", "combine", "parse"]

Value: TypeAlias = bool | int | float | str

MAX_DEPTH: Final = 32  # both stores parse filters recursively
MAX_CONDITIONS: Final = 1000  # comparisons and listed values of one filter, together
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
COMPARISONS: Final = ("==", "!=", "<=", ">=", "<", ">")
# Without -2**63: Milvus reads the digits first and the sign afterwards.
_INT64 = range(-(2**63) + 1, 2**63)


def refuse(text: str) -> RequestFailed:
    """A ``bad_request`` about a filter."""
    return error_for(ErrorCode.BAD_REQUEST, f"filter: {text}")


@dataclass(frozen=True, slots=True)
class Compare:
    """``field op value`` with one of ``== != < <= > >=``."""

    field: str
    op: str
    value: Value


@dataclass(frozen=True, slots=True)
class In:
    """``field`` is one of ``values``."""

    field: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """``field`` is text that starts with ``prefix``.

    The one pattern that all stores understand alike (2.3 refuses others; escaping in them differs on each).
    """

    field: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Exists:
    """The row has a value for ``field``."""

    field: str


@dataclass(frozen=True, slots=True)
class And:
    """All of ``items``."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of ``items``."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Whatever ``item`` is not."""

    item: Node


Node: TypeAlias = Compare | In | Like | Exists | And | Or | Not
Filter: TypeAlias = "Mapping[str, object] | str | Node | None"


def parse(given: Filter) -> Node | None:
    """The tree of a filter; ``None`` where nothing is filtered (``None``, ``{}``, blank text).

    Args:
        given: a mapping, an expression, a tree, or ``None``.

    Raises:
        RequestFailed: ``bad_request``, with what is wrong and where.
    """
    if given is None:
        return None
    if isinstance(given, str):
        node = _expression(given) if given.strip() else None
    elif isinstance(given, Mapping):
        node = _from_mapping(given, depth=0) if given else None
    elif isinstance(given, Compare | In | Like | Exists | And | Or | Not):
        node = given
    else:
        raise refuse(f"it is a mapping or an expression, not {type(given).__name__}")
    if node is not None:
        _check_size(node)
    return node


def combine(*filters: Filter) -> Node | None:
    """All of the filters at once: what a service adds holds whatever the user's own filter says."""
    nodes = tuple(node for node in map(parse, filters) if node is not None)
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    whole = And(nodes)
    _check_size(whole)
    return whole


def condition(field: object, op: object, value: object) -> Node:
    """One checked condition; shared by both notations.

    Raises:
        RequestFailed: ``bad_request`` for an unknown operator, a name or a value that no store takes.
    """
    name = field_name(field)
    if op in COMPARISONS:
        checked = literal(value, name)
        if op not in {"==", "!="} and isinstance(checked, bool):
            raise refuse(f"{name} {op} {str(checked).lower()}: true and false have no order")
        return Compare(name, str(op), checked)
    if op in {"in", "not in"}:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise refuse(f"{name} {op} needs a list")
        inside = In(name, tuple(literal(item, name) for item in value))
        return Not(inside) if op == "not in" else inside
    if op in {"like", "not like"}:
        like = _like(name, value)
        return Not(like) if op == "not like" else like
    if op == "exists" and isinstance(value, bool):
        return Exists(name) if value else Not(Exists(name))
    raise refuse(
        f"{op!r:.40} after {name}: the operators are {', '.join(COMPARISONS)}, in, not in, like, exists (true or false)"
    )


def field_name(name: object) -> str:
    """``name`` if it may stand in a filter."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refuse(f"{name!r:.80} is no field name that can be filtered on: letters, digits and _, at most 64")
    return name


def literal(value: object, name: str) -> Value:
    """``value`` if every store reads it as the same thing."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refuse(f"the text for {name} is no valid Unicode") from None
        return value
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in _INT64:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise refuse(f"{name}: {value!r:.60} is no text, true, false, number of 64 bits")


def _like(name: str, pattern: object) -> Node:
    if not isinstance(pattern, str):
        raise refuse(f"{name} like needs text")
    parts = re.split(r"(\\[\\%]|%)", str(literal(pattern, name)))
    at_end = len(parts) >= 3 and parts[-2] == "%" and not parts[-1]
    body = parts[:-2] if at_end else parts
    if "%" in body:
        raise refuse(
            f'{name} like {pattern!r:.60}: the one wildcard is a % at the end ("a/%"); write \\% for a percent sign'
        )
    text = "".join(part[1:] if part in {"\\\\", "\\%"} else part for part in body)
    return Like(name, text) if at_end else Compare(name, "==", text)


def _from_mapping(given: Mapping[object, object] | Mapping[str, object], depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise refuse(f"nested deeper than {MAX_DEPTH}")
    if not given:
        raise refuse("an empty mapping inside a filter says nothing")
    items = tuple(_from_item(key, value, depth) for key, value in given.items())
    return items[0] if len(items) == 1 else And(items)


def _from_item(key: object, value: object, depth: int) -> Node:
    if key in {"$and", "$or"}:
        if not isinstance(value, list | tuple) or not value:
            raise refuse(f"{key} needs a list of filters")
        items = tuple(_nested(item, depth) for item in value)
        return And(items) if key == "$and" else Or(items)
    if key == "$not":
        return Not(_nested(value, depth))
    if not isinstance(value, Mapping):
        return condition(key, "==", value)
    if not value:
        raise refuse(f"no operator for {key!r:.80}")
    conditions = tuple(condition(key, op, operand) for op, operand in value.items())
    return conditions[0] if len(conditions) == 1 else And(conditions)


def _nested(value: object, depth: int) -> Node:
    # An expression stands for itself here, read to its own end: a service adds its tenant to a user's text by
    # {"$and": [{"tenant": "a"}, text]}, and never by gluing texts together.
    if isinstance(value, str):
        return _expression(value)
    if not isinstance(value, Mapping):
        raise refuse(f"expected a mapping or an expression inside $and, $or, $not, not {type(value).__name__}")
    return _from_mapping(value, depth + 1)


def _expression(text: str) -> Node:
    from clipfleet.store import grammar  # noqa: PLC0415 - it builds this module's nodes

    return grammar.parse_expression(text)


def _check_size(node: Node) -> None:
    conditions = 0
    for leaf, depth in walk(node):
        conditions += len(leaf.values) if isinstance(leaf, In) else 1
        if depth > MAX_DEPTH:
            raise refuse(f"nested deeper than {MAX_DEPTH}")
        if conditions > MAX_CONDITIONS:
            raise refuse(f"more than {MAX_CONDITIONS} conditions and listed values")


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Every node with its depth, without recursion (a tree may come from anywhere)."""
    stack = [(node, 0)]
    while stack:
        current, depth = stack.pop()
        yield current, depth
        if isinstance(current, And | Or):
            stack.extend((item, depth + 1) for item in current.items)
        elif isinstance(current, Not):
            stack.append((current.item, depth + 1))
