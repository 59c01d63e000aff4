"""From a filter's tree to the expression that Milvus reads; see ``filters`` for what it means.

Everything here is written in the part of the language that Milvus Lite 3.2 and Milvus 2.3 and later read alike: Lite
knows no ``in`` on a JSON path, 2.3 no ``is null``, no bare boolean column and no fraction against an integer column;
both read ``like`` differently, so a prefix becomes a range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clipfleet.store.filters import And, Compare, Exists, In, Like, Node, Not, Or, Value, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clipfleet.store.types import Field

__all__ = ["compile_filter", "ids_expression", "quote"]

# Neither store has a constant; ids are never empty.
_TRUE: Final = 'id != ""'
_FALSE: Final = 'id == ""'
_OPPOSITE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def quote(text: str) -> str:
    r"""A string literal of both parsers.

    One pass, so that a backslash is never escaped twice; ``\\ \" \n \r \t`` are the only escapes that Lite knows, and a
    raw line break ends a literal in both.
    """
    return f'"{text.translate(_ESCAPES)}"'


def ids_expression(ids: Sequence[str]) -> str:
    """The rows with these ids; pymilvus' own ``ids=`` builds its text without escaping."""
    return f"id in [{', '.join(map(quote, ids))}]"


def compile_filter(node: Node | None, fields: Sequence[Field] = ()) -> str:
    """The expression for ``node``; empty for ``None``.

    Args:
        node: from ``filters.parse`` or ``filters.combine``.
        fields: the collection's declared fields: these are columns, everything else a key of ``metadata``.

    Raises:
        RequestFailed: ``bad_request`` when a value does not fit a declared field's type.
    """
    return "" if node is None else _emit(node, {field.name: field for field in fields}, negated=False)


def _emit(node: Node, columns: Mapping[str, Field], *, negated: bool) -> str:
    if isinstance(node, Not):
        return _emit(node.item, columns, negated=not negated)
    if isinstance(node, And | Or):
        word = " and " if isinstance(node, And) is not negated else " or "
        return _joined([_emit(item, columns, negated=negated) for item in node.items], word)
    if isinstance(node, Compare) and node.op == "!=":
        # "not equal" is the negation of "equal", so that rows without the key are among its hits.
        return _emit(Compare(node.field, "==", node.value), columns, negated=not negated)
    return _leaf(node, _operand(node.field, columns), negated=negated)


@dataclass(frozen=True, slots=True)
class _Operand:
    """How a field is spelled, and how its absence is."""

    name: str
    text: str
    type: str  # of the column; empty for a JSON key
    present: str  # empty: always
    absent: str

    def guard(self, expression: str, *, negated: bool) -> str:
        """``expression`` only where the field is there; when negated, also where it is not."""
        if negated:
            return f"({self.absent} or {expression})" if self.absent else expression
        # A comparison with a missing JSON key is false by itself, on both stores.
        return f"({self.present} and {expression})" if self.present and self.type else expression


def _operand(name: str, columns: Mapping[str, Field]) -> _Operand:
    if name == "id":
        return _Operand(name, "id", "str", "", "")
    if name in columns:
        flag = columns[name].flag
        return _Operand(name, name, columns[name].type, f"{flag} == true", f"{flag} == false")
    path = f'metadata["{name}"]'
    # Parentheses, since Milvus' grammar gives `exists` a lower precedence than `or`.
    return _Operand(name, path, "", f"(exists {path})", f"(not (exists {path}))")


def _leaf(node: Compare | In | Like | Exists, operand: _Operand, *, negated: bool) -> str:
    if isinstance(node, Exists):
        return (operand.absent or _FALSE) if negated else (operand.present or _TRUE)
    if isinstance(node, In):
        expression = _in(node.values, operand, negated=negated)
    elif isinstance(node, Like):
        expression = _prefix(node.prefix, operand, negated=negated)
    else:
        expression = _compare(_OPPOSITE[node.op] if negated else node.op, node.value, operand)
    return operand.guard(expression, negated=negated)


def _in(values: Sequence[Value], operand: _Operand, *, negated: bool) -> str:
    if operand.type in {"", "bool"}:
        # Lite has `in` on columns alone.
        op, word = ("!=", " and ") if negated else ("==", " or ")
        return _joined([_compare(op, value, operand) for value in values], word) or (_TRUE if negated else _FALSE)
    for value in values:
        _check_type("==", value, operand)
    if operand.type == "int":
        values = [int(value) for value in values if not isinstance(value, float) or _is_int64(value)]
    listed = f"{operand.text} in [{', '.join(map(_literal, values))}]"
    return f"(not ({listed}))" if negated else listed


def _joined(expressions: Sequence[str], word: str) -> str:
    """A balanced tree of ``and`` or ``or``: Milvus nests a chain as deep as it is long, and fails at some hundreds."""
    if len(expressions) <= 1:
        return "".join(expressions)
    middle = len(expressions) // 2
    return f"({_joined(expressions[:middle], word)}{word}{_joined(expressions[middle:], word)})"


def _prefix(prefix: str, operand: _Operand, *, negated: bool) -> str:
    if operand.type not in {"", "str"}:
        raise refuse(f"like on {operand.name}, which is {operand.type}")
    end = _after(prefix)
    low = f"{operand.text} {'<' if negated else '>='} {quote(prefix)}"
    if end is None:
        return low
    high = f"{operand.text} {'>=' if negated else '<'} {quote(end)}"
    return f"({low} {'or' if negated else 'and'} {high})"


def _after(prefix: str) -> str | None:
    """The first text, by code points, after all that starts with ``prefix``; ``None`` when there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            # Surrogates are no characters: they cannot be encoded.
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return None


def _compare(op: str, value: Value, operand: _Operand) -> str:
    _check_type(op, value, operand)
    if operand.type == "int" and isinstance(value, float):
        return _compare_fraction(op, value, operand)
    return f"{operand.text} {op} {_literal(value)}"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value) if isinstance(value, str) else repr(value)


def _is_int64(value: float) -> bool:
    return value.is_integer() and -(2.0**63) < value < 2.0**63


def _check_type(op: str, value: Value, operand: _Operand) -> None:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "": True,
        "int": numeric,
        "float": numeric,
        "str": isinstance(value, str),
        "bool": isinstance(value, bool) and op in {"==", "!="},
    }
    if not fits[operand.type]:
        raise refuse(f"{operand.name} is declared {operand.type}: it cannot be compared ({op}) with {value!r:.60}")


def _compare_fraction(op: str, value: float, operand: _Operand) -> str:
    """Milvus 2.3 refuses a float against an integer column, so the nearest integer takes its place."""
    if op in {"==", "!="}:
        if not _is_int64(value):
            return _FALSE if op == "==" else _TRUE
        whole = int(value)
    else:
        whole = math.floor(value) if op in {">", "<="} else math.ceil(value)
    if not -(2**63) < whole < 2**63:
        return _TRUE if op.startswith("<" if whole > 0 else ">") else _FALSE
    return f"{operand.text} {op} {whole}"
