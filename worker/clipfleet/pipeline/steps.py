"""A definition as its reader thinks of it: one step for each method that was called.

``window_all``, ``reduce``, ``window`` and ``time_window`` are each made of several nodes; whoever looks at a pipeline
wants to see the one that was written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from clipfleet.operators.operator import BatchOperator
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clipfleet.pipeline.definition import Node
    from clipfleet.pipeline.pipeline import Pipeline

__all__ = ["Step", "describe", "steps_of"]

_CLOSING: Final = frozenset({"window_all", "reduce"})
_OPENING: Final = frozenset({"flat_map"})
_REGROUPING: Final = frozenset({"window", "time_window"})


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: of the stage.
        label: the method that was called.
        parents: the numbers of the steps before it.
        reads: names of its input columns.
        writes: names of its output columns.
        options: what was said of how it runs, and what its operator says.
        depth: of the rows that it works on: 0 for the request's own.
        rows: what it does to them: ``1:n``, ``n:1``, ``n:m``, or nothing.
    """

    name: str
    label: str
    parents: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    options: Mapping[str, Any]
    depth: int
    rows: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Its options in words: ``batch ≤ 8``, ``2 instances``."""
        return tuple(note(self.options[name]) for name, note in _NOTES.items() if name in self.options)


def steps_of(pipeline: Pipeline) -> list[Step]:
    """The steps of a pipeline, each after those before it."""
    nodes = pipeline.nodes
    children = Counter(parent for node in nodes for parent in node.parents)
    parts = {node.parents[0] for node in nodes if _continues(node)}
    numbers: dict[Node, int] = {}
    steps: list[Step] = []

    def joined(node: Node) -> bool:
        """Whether it is a join that is only joined further: ``concat`` of three branches is made of two."""
        return node.kind == "concat" and children[node] == 1

    parts |= {parent for node in nodes if node.kind == "concat" for parent in node.parents if joined(parent)}
    for node in nodes:
        if node in parts:
            continue
        first = node
        while _continues(first):
            first = first.parents[0]
        parents = list(first.parents)
        while inner := [parent for parent in parents if parent in parts]:
            place = parents.index(inner[0])
            parents[place : place + 1] = inner[0].parents
        numbers[node] = len(steps)
        steps.append(_step(first, node, tuple(dict.fromkeys(numbers[parent] for parent in parents))))
    return steps


def describe(pipeline: Pipeline) -> dict[str, Any]:
    """The pipeline as plain data, for programs."""
    return {
        "name": pipeline.name,
        "inputs": list(pipeline.inputs),
        "outputs": list(pipeline.outputs),
        "steps": [
            {
                "name": step.name,
                "method": step.label,
                "parents": list(step.parents),
                "reads": list(step.reads),
                "writes": list(step.writes),
                "depth": step.depth,
                "options": {name: list(v) if isinstance(v, tuple) else v for name, v in step.options.items()},
            }
            for step in steps_of(pipeline)
        ],
    }


def _continues(node: Node) -> bool:
    """Whether it is one method with the node before it: a gather with what takes its lists."""
    return (
        node.kind in {"map", "flat_map"}
        and bool(node.reads)
        and all(column.name.startswith("[") for column in node.reads)
        and node.label == node.parents[0].label
    )


def _step(first: Node, last: Node, parents: tuple[int, ...]) -> Step:
    depth = len(first.scope)
    rows = ""
    if last.label in _CLOSING:
        rows = "n:1"
    elif last.label in _OPENING:
        rows = "1:n"
    elif last.label in _REGROUPING:
        rows = "n:m"
    return Step(
        name=last.name,
        label=last.label,
        parents=parents,
        reads=tuple(column.name for column in first.reads),
        writes=tuple(column.name for column in last.writes),
        options=_options(last),
        depth=depth,
        rows=rows,
    )


def _options(node: Node) -> dict[str, Any]:
    given = {
        one.name: getattr(node.options, one.name)
        for one in fields(node.options)
        if one.name != "name" and getattr(node.options, one.name) not in (None, False)
    }
    if isinstance(node.does, BatchOperator):
        own = {"max_batch_size": node.does.max_batch_size, "max_delay": node.does.max_delay, "batched": True}
        given = {name: value for name, value in own.items() if value is not None} | given
        if "max_batch_size" in given:
            del given["batched"]
    return given


def _seconds(value: float) -> str:
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


_NOTES: Final[dict[str, Callable[[Any], str]]] = {
    "max_batch_size": lambda value: f"batch ≤ {value}",
    "batched": lambda _: "batched",
    "max_delay": lambda value: f"delay ≤ {_seconds(value)}" if value else "no delay",
    "instances": lambda value: counted(value, "instance"),
    "device": str,
    "providers": " > ".join,
    "timeout": lambda value: f"timeout {_seconds(value)}",
    "inline": lambda _: "inline",
}
