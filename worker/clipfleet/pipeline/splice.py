"""A pipeline in a stage's place: its nodes become nodes of the other one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clipfleet.pipeline.definition import Column, Flow, Kind, Node, PipelineError
from clipfleet.pipeline.graph import ordered
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from clipfleet.pipeline.pipeline import Pipeline

__all__ = ["splice"]


def splice(flow: Flow, pipeline: Pipeline, kind: Kind, reads: tuple[Column, ...], writes: tuple[str, ...]) -> Flow:
    """Go on with the nodes of ``pipeline``: its inputs are ``reads``, its outputs become ``writes``, by position.

    Raises:
        PipelineError: the numbers of columns differ, or its rows do not fit the place.
    """
    inner = pipeline.flow
    if len(pipeline.variants()) > 1:
        raise PipelineError(f"{kind} of {pipeline.name}: a choice has no place in another pipeline")
    what = f"{kind} of the pipeline {pipeline.name}"
    wanted = tuple(inner.fields)
    if len(reads) != len(wanted):
        raise PipelineError(
            f"{what}: it takes {counted(len(wanted), 'column')} ({', '.join(wanted)}), not {len(reads)}"
        )
    if kind != "sink" and len(writes) != len(pipeline.outputs):
        gives = f"{counted(len(pipeline.outputs), 'column')} ({', '.join(pipeline.outputs)})"
        raise PipelineError(f"{what}: it gives {gives}, not {len(writes)}")
    if kind == "filter" or (kind == "flat_map") != bool(inner.scope):
        many = "many rows" if inner.scope else "one row"
        raise PipelineError(f"{what}: it gives {many}; use {'flat_map' if inner.scope else 'map'}")
    last = inner.head.parents[0]
    copied = _Copy(flow, reads)
    for node in ordered(last):
        copied.add(node)
    head = copied.nodes[last]
    scope = (*flow.scope, *(copied.nodes[opener] for opener in inner.scope))
    made = (
        {}
        if kind == "sink"
        else {name: copied.column(inner.columns[own]) for name, own in zip(writes, pipeline.outputs, strict=True)}
    )
    return replace(flow, head=head, scope=scope, columns={**flow.columns, **made})


class _Copy:
    """Copies of nodes and columns, below the rows of ``flow``."""

    def __init__(self, flow: Flow, reads: tuple[Column, ...]) -> None:
        self.nodes: dict[Node, Node] = {}
        self._columns: dict[Column, Column] = {}
        self._flow, self._reads = flow, reads

    def add(self, node: Node) -> None:
        if node.kind == "input":
            self.nodes[node] = self._flow.head
            self._columns |= dict(zip(node.writes, self._reads, strict=True))
            return
        self.nodes[node] = replace(
            node,
            parents=tuple(self.nodes[parent] for parent in node.parents),
            reads=tuple(map(self.column, node.reads)),
            writes=tuple(map(self.column, node.writes)),
            scope=(*self._flow.scope, *(self.nodes[opener] for opener in node.scope)),
        )

    def column(self, column: Column) -> Column:
        if column not in self._columns:
            self._columns[column] = Column(column.name, column.depth + len(self._flow.scope))
        return self._columns[column]
