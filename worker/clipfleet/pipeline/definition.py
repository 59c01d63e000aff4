"""Definitions of pipelines: immutable chains and branches of stages over named columns, checked as they are built.

A **row** holds named values. ``input`` opens the one row of a request; ``map`` adds columns to it; ``flat_map`` opens
many rows below it, which still see its columns; ``window`` turns rows below into others; ``window_all`` and ``reduce``
close them, and go on with the row above. Each method returns a new ``Flow``, so any flow can be continued in several
ways and joined again by ``concat``::

    objects = (
        pipeline.input("image")
        .map("image", "pixels", decode())
        .flat_map("pixels", ("box", "score", "label"), detect("yolo.onnx"))
        .map(("pixels", "box"), "crop", crop())
        .map("crop", "vector", clip_image())
        .output("label", "vector")
    )

Everything is made of few kinds of nodes: ``window_all`` is a *gather* (rows below become lists) and a *map*; ``window``
is a gather and a *flat_map* over the windows; another pipeline in a stage's place is spliced in, node by node.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from clipfleet.operators.operator import StageOptions
from clipfleet.pipeline.arguments import (
    Columns,
    PipelineError,
    check_call,
    check_no_options,
    check_options,
    name_of,
    names_of,
    read_options,
    text_of,
)
from clipfleet.pipeline.fields import Field, anything
from clipfleet.pipeline.windows import time_windows, windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clipfleet.pipeline.pipeline import Pipeline

__all__ = ["Column", "Columns", "Flow", "Kind", "Node", "PipelineError", "input_flow"]

Kind = Literal["input", "map", "flat_map", "filter", "gather", "concat", "sink", "output"]


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """A named value of each row.

    Attributes:
        name: what the definition calls it.
        depth: of the rows that hold it: 0 for the request's own, 1 below a ``flat_map``, and so on.
    """

    name: str
    depth: int


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One step of a definition.

    Attributes:
        kind: what it does with rows.
        name: for errors, figures and drawings.
        label: the method that was called: ``window_all`` for one of its two nodes.
        parents: the steps before it.
        reads: its input columns.
        writes: its output columns.
        does: function or operator.
        options: how it runs.
        scope: the nodes that opened the rows it works on, from the outside in.
    """

    kind: Kind
    name: str
    label: str
    parents: tuple[Node, ...]
    reads: tuple[Column, ...] = ()
    writes: tuple[Column, ...] = ()
    does: Callable[..., Any] | None = None
    options: StageOptions = field(default_factory=StageOptions)
    scope: tuple[Node, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Flow:
    """An open definition: what has been said so far. Made by ``pipeline.input``.

    Attributes:
        head: its last node.
        scope: the nodes that opened the rows that it has now.
        columns: what can be read, by name.
        fields: what the inputs must be, by name.
    """

    head: Node
    scope: tuple[Node, ...]
    columns: Mapping[str, Column]
    fields: Mapping[str, Field]

    # One row to one row -------------------------------------------------------------------------------------------

    def map(self, inputs: Columns, outputs: Columns, does: Callable[..., Any] | Pipeline, **options: Any) -> Flow:
        """Add columns to each row.

        Args:
            inputs: the columns that ``does`` gets, one argument each. A plain function that is given
                ``max_batch_size`` gets one *list* each, and returns a list.
            outputs: the columns it makes; for several it returns a tuple.
            does: a function, an operator or another pipeline (of one row).
            **options: how it runs; see ``StageOptions``.

        Raises:
            PipelineError: an unknown column, a function that cannot take that many, an option that does not exist.
        """
        return self.stage("map", inputs, outputs, does, options)

    def filter(self, inputs: Columns, does: Callable[..., Any], **options: Any) -> Flow:
        """Go on only with the rows for which ``does`` is true; see ``map``."""
        return self.stage("filter", inputs, (), does, options)

    def sink(self, inputs: Columns, does: Callable[..., Any], **options: Any) -> Flow:
        """Give columns away: what ``does`` returns is dropped, and the row goes on as it was. See ``map``.

        The request is answered after all of its sinks.
        """
        return self.stage("sink", inputs, (), does, options)

    # Rows below ---------------------------------------------------------------------------------------------------

    def flat_map(self, inputs: Columns, outputs: Columns, does: Callable[..., Any] | Pipeline, **options: Any) -> Flow:
        """Open rows below each row: one for each element that ``does`` gives.

        A generator is advanced only as far as there is room for its rows. See ``map``.
        """
        return self.stage("flat_map", inputs, outputs, does, options)

    def window_all(self, inputs: Columns, outputs: Columns, does: Callable[..., Any], **options: Any) -> Flow:
        """Close the rows below: ``does`` gets each column as the list of all values, in order. See ``map``."""
        lists, flow = self._gather("window_all", inputs, does)
        return flow.stage("map", lists, outputs, does, options, label="window_all")

    def reduce(
        self, inputs: Columns, outputs: Columns, does: Callable[..., Any], initial: Any = None, **options: Any
    ) -> Flow:
        """Close the rows below, folding: ``does(so_far, *values)`` for each in order, beginning with ``initial``."""
        lists, flow = self._gather("reduce", inputs, does)

        def fold(*columns: list[Any]) -> Any:
            return functools.reduce(lambda so_far, values: does(so_far, *values), zip(*columns, strict=True), initial)

        options = {"name": name_of(does), **options}
        return flow.stage("map", lists, outputs, fold, options, label="reduce")

    def window(
        self,
        inputs: Columns,
        outputs: Columns,
        size: int,
        step: int,
        does: Callable[..., Any],
        **options: Any,
    ) -> Flow:
        """Turn the rows below into others: one for each ``size`` of them, ``step`` apart; the last may be short.

        ``does`` gets each column as a list. See ``map``.
        """
        if size < 1 or step < 1:
            raise PipelineError(
                f"window over {text_of(inputs)}: size and step must be at least 1, not {size} and {step}"
            )
        cut = functools.partial(windows, size=size, step=step)
        return self._windows("window", inputs, outputs, cut, does, options)

    def time_window(
        self,
        inputs: Columns,
        outputs: Columns,
        seconds: str,
        size: float,
        step: float,
        does: Callable[..., Any],
        **options: Any,
    ) -> Flow:
        """As ``window``, with ``size`` and ``step`` in seconds of the column ``seconds``; none is empty."""
        if not (size > 0 and step > 0):
            raise PipelineError(
                f"time_window over {text_of(inputs)}: size and step must be above 0, not {size} and {step}"
            )
        cut = functools.partial(time_windows, size=size, step=step)
        return self._windows("time_window", (seconds, *names_of(inputs)), outputs, cut, does, options)

    # Branches -----------------------------------------------------------------------------------------------------

    def concat(self, *others: Flow) -> Flow:
        """Join branches of one flow: each row goes on with the columns of all of them, once all have them.

        A row that a branch has filtered out does not go on. A branch with rows below the other's lends them its own.

        Raises:
            PipelineError: the branches have nothing in common, both opened rows, or one summarises the other's rows.
        """
        from clipfleet.pipeline.join import join  # noqa: PLC0415  (which makes flows itself)

        flow = self
        for other in others:
            flow = join(flow, other)
        return flow

    def output(self, *columns: str) -> Pipeline:
        """Close the definition.

        Raises:
            PipelineError: no column or an unknown one, or an input that nothing uses.
        """
        from clipfleet.pipeline.pipeline import close_flow  # noqa: PLC0415  (which is made of flows)

        return close_flow(self, columns)

    # Inside -------------------------------------------------------------------------------------------------------

    def stage(
        self,
        kind: Kind,
        inputs: Columns,
        outputs: Columns,
        does: Callable[..., Any] | Pipeline,
        options: Mapping[str, Any],
        label: str = "",
    ) -> Flow:
        """Add a node; what the methods above are made of."""
        from clipfleet.pipeline.pipeline import Pipeline  # noqa: PLC0415  (which is made of flows)

        what = f"{label or kind} {text_of(inputs)}"
        chosen = read_options(what, options)
        writes, reads = names_of(outputs), self._read(what, inputs)
        if isinstance(does, Pipeline):
            from clipfleet.pipeline.splice import splice  # noqa: PLC0415

            check_no_options(f"{what} ({does.name})", chosen)
            return splice(self, does, kind, reads, writes)
        name = chosen.name or name_of(does)
        check_call(f"{what} ({name})", does, len(reads))
        check_options(f"{what} ({name})", does, len(reads), chosen)
        depth = len(self.scope) + (kind == "flat_map")
        node = Node(
            kind,
            name,
            label or kind,
            (self.head,),
            reads,
            tuple(Column(one, depth) for one in writes),
            does,
            chosen,
            self.scope,
        )
        return self.then(node, scope=(*self.scope, node) if kind == "flat_map" else self.scope)

    def then(self, node: Node, *, scope: tuple[Node, ...]) -> Flow:
        """Go on after a node, with rows of ``scope``."""
        kept = {name: column for name, column in self.columns.items() if column.depth <= len(scope)}
        return replace(
            self, head=node, scope=scope, columns={**kept, **{column.name: column for column in node.writes}}
        )

    def _gather(self, label: str, inputs: Columns, does: Any) -> tuple[tuple[str, ...], Flow]:
        """Close the rows below: their columns become lists of the row above, under names that nobody can write."""
        what = f"{label} {text_of(inputs)}"
        if not self.scope:
            raise PipelineError(f"{what}: there are no rows to gather; a flat_map or a window opens them")
        reads, scope = self._read(what, inputs), self.scope[:-1]
        lists = tuple(f"[{name}]" for name in names_of(inputs))
        node = Node(
            "gather",
            name_of(does),
            label,
            (self.head,),
            reads,
            tuple(Column(name, len(scope)) for name in lists),
            scope=self.scope,
        )
        above = {name: column for name, column in self.columns.items() if column.depth <= len(scope)}
        return lists, replace(self, columns=above).then(node, scope=scope)

    def _windows(
        self,
        label: str,
        inputs: Columns,
        outputs: Columns,
        cut: Callable[..., Iterable[Any]],
        does: Callable[..., Any],
        options: Mapping[str, Any],
    ) -> Flow:
        lists, flow = self._gather(label, inputs, does)
        parts = lists if label == "window" else lists[1:]
        flow = flow.stage("flat_map", lists, parts, cut, {"name": label, "inline": True}, label=label)
        return flow.stage("map", parts, outputs, does, options, label=label)

    def _read(self, what: str, inputs: Columns) -> tuple[Column, ...]:
        names = names_of(inputs)
        for name in names:
            if name not in self.columns:
                there = ", ".join(one for one in self.columns if not one.startswith("[")) or "none"
                raise PipelineError(f"{what}: there is no column {name!r} here; there are {there}")
        return tuple(self.columns[name] for name in names)


def input_flow(*columns: str, **fields: Any) -> Flow:
    """Begin a definition with the columns that a request gives.

    Args:
        *columns: names whose values may be anything but must be there.
        **fields: names with what they must be (``clipfleet.pipeline.fields``), or with a default.

    Raises:
        PipelineError: no column, or a name that is none.
    """
    checked = {name: anything(required=True) for name in columns}
    for name, given in fields.items():
        checked[name] = given if isinstance(given, Field) else anything(default=given)
    if not checked or any(not name.isidentifier() for name in checked):
        raise PipelineError("input: name at least one column; names are letters, digits and underscores")
    node = Node("input", "input", "input", (), (), tuple(Column(name, 0) for name in checked))
    return Flow(node, (), {column.name: column for column in node.writes}, checked)
