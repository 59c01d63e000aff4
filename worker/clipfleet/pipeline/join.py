"""Joining branches of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.pipeline.definition import Flow, Node, PipelineError
from clipfleet.pipeline.graph import ancestors

if TYPE_CHECKING:
    from clipfleet.pipeline.definition import Column

__all__ = ["join"]


def join(one: Flow, other: Flow) -> Flow:
    """Rows with the columns of both; see ``Flow.concat``."""
    deep, shallow = (one, other) if len(one.scope) >= len(other.scope) else (other, one)
    above = ancestors(shallow.head)
    if above[0] is not ancestors(deep.head)[0]:
        raise PipelineError(f"concat of {one.head.name} and {other.head.name}: they begin with different inputs")
    if deep.scope[: len(shallow.scope)] != shallow.scope:
        raise PipelineError(
            f"concat of {one.head.name} and {other.head.name}: both opened rows of their own, and nothing says which "
            "belong together; close one of them first (window_all)"
        )
    if len(deep.scope) > len(shallow.scope):
        opener = deep.scope[len(shallow.scope)]
        if any(opener in node.scope for node in above):
            raise PipelineError(
                f"concat of {one.head.name} and {other.head.name} is a cycle: the rows of {opener.name} would wait for "
                f"{shallow.head.name}, which is made of all of them"
            )
    node = Node("concat", "concat", "concat", (one.head, other.head), scope=deep.scope)
    return Flow(node, deep.scope, _merged(one, other), one.fields)


def _merged(one: Flow, other: Flow) -> dict[str, Column]:
    """Columns of both. What only one of them wrote after they parted is that one's; written by both, it is a clash."""
    before = {id(column) for node in set(ancestors(one.head)) & set(ancestors(other.head)) for column in node.writes}
    merged = dict(one.columns)
    for name, column in other.columns.items():
        mine = merged.get(name)
        if mine is None or (id(mine) in before and column is not mine):
            merged[name] = column
        elif column is not mine and id(column) not in before and not name.startswith("["):
            raise PipelineError(
                f"concat of {one.head.name} and {other.head.name}: both make a column {name!r}; rename one"
            )
    return merged
