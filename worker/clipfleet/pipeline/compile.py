"""From definitions to programs: columns get places, nodes become steps, and equal stages are opened once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from clipfleet.pipeline.graph import borrowed, parent_scope
from clipfleet.pipeline.program import Does, Program, Served, Step
from clipfleet.pipeline.stage import BatchStage, EachStage
from clipfleet.pipeline.stages import Stages
from clipfleet.pipeline.straight import is_straight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clipfleet.batching import BatchPolicy
    from clipfleet.operators.operator import Operator, Place
    from clipfleet.pipeline.definition import Column, Node
    from clipfleet.pipeline.pipeline import Pipeline

__all__ = ["compile_pipelines"]


def compile_pipelines(
    pipelines: Mapping[str, Pipeline],
    place: Place,
    policy: BatchPolicy,
    *,
    sized: bool = False,
    fingerprint: Callable[[], str] = lambda: "",
    close: Callable[[], None] = lambda: None,
) -> Served:
    """Open every stage of these pipelines and make their programs.

    Args:
        pipelines: by the name that requests call them by.
        place: where operators are opened, unless a stage says otherwise.
        policy: how batches are formed where neither stage nor operator says.
        sized: whether batches on a CPU are made no larger than is worth it, as is measured here.
        fingerprint: of the models that were loaded; asked when all are.
        close: frees what the stages share, after each stage was closed.

    Raises:
        ModelError: a model or a device cannot be had.
        ValueError: an operator cannot work as it was configured.
    """
    stages = Stages(place, policy, sized=sized)

    def close_all() -> None:
        for stage in stages.all:
            if stage.close is not None:
                stage.close()
        close()

    try:
        programs = {
            name: {variant: _Compiler(name, one, stages).program() for variant, one in pipeline.variants().items()}
            for name, pipeline in pipelines.items()
        }
    except BaseException:
        close_all()
        raise
    picks = {name: pipeline.pick for name, pipeline in pipelines.items()}
    return Served(programs, picks, stages.all, fingerprint(), close_all)


class _Compiler:
    """One definition on its way to a program."""

    def __init__(self, name: str, pipeline: Pipeline, stages: Stages) -> None:
        self._name = name
        self._pipeline = pipeline
        self._stages = stages
        self._nodes = pipeline.nodes
        self._waits = borrowed(self._nodes)
        self._places: dict[Column, int] = {}
        self._sizes: list[int] = [0]
        self._steps: list[Step] = []
        self._exit: dict[Node, Step] = {}
        self._depth: dict[int, int] = {}
        self._operators: list[Operator] = []
        self._model = self._sole_model()

    def program(self) -> Program:
        """Make it."""
        first = self._nodes[0]
        for column in first.writes:
            self._place(column)
        self._exit[first] = start = self._step("input", "pass", None, (), (), 0)
        for node in self._nodes[1:]:
            self._add(node)
        result = self._steps[-1].writes[0]
        self._free(result)
        return Program(
            self._name,
            self._pipeline.flow.fields,
            start.then,
            tuple(self._sizes),
            result,
            self._pipeline.outputs,
            many=bool(self._pipeline.flow.scope),
            needs_store=any(getattr(one, "resource", "").startswith("store") for one in self._operators),
            of_model=any(one.of_model for one in self._operators),
            straight=is_straight(start.then),
            at_once=_at_once(self._steps),
        )

    def _sole_model(self) -> str | None:
        """The model that operators of this pipeline mean when they name none: the only one that others name."""
        named = {getattr(node.does, "model", None) for node in self._nodes} - {None}
        return str(named.pop()) if len(named) == 1 else None

    # Nodes --------------------------------------------------------------------------------------------------------

    def _add(self, node: Node) -> None:
        depth = len(node.scope)
        reads = self._reads(node.reads, depth)
        if node.kind == "concat":
            step = self._step(node.name, "pass", None, (), (), depth)
            self._place_node(node, step, step)
        elif node.kind == "gather":
            step = self._step(node.name, "gather", None, reads, tuple(map(self._place, node.writes)), depth)
            self._place_node(node, step, step)
            self._exit[node.scope[-1]].gathers += (step,)
        elif node.kind == "output":
            self._output(node, reads, depth)
        else:
            self._run(node, reads, depth)

    def _run(self, node: Node, reads: tuple[tuple[int, int], ...], depth: int) -> None:
        stage = self._stages.stage(node, self._model)
        if stage.operator is not None:
            self._operators.append(stage.operator)
        entry = None
        if stage.prepare is not None:
            hidden = self._new_place(depth)
            entry = self._step(f"{node.name}: prepare", "map", stage.prepare, reads, (hidden,), depth)
            reads = ((0, hidden),)
        writes = tuple(map(self._place, node.writes))
        main = self._step(node.name, cast("Does", node.kind), stage.main, reads, writes, depth)
        main.inline = node.options.inline
        if entry is not None:
            self._link(entry, main)
        self._place_node(node, entry or main, main)

    def _output(self, node: Node, reads: tuple[tuple[int, int], ...], depth: int) -> None:
        """Pack each row as a tuple; gather them, level by level, into one list in the request's row."""
        pack = (lambda *values: list(values)) if depth else (lambda *values: [list(values)])
        step = self._inline(pack, reads, depth)
        self._place_node(node, step, step)
        if not depth:
            step.packs = True
            return
        for level in range(depth, 0, -1):
            gather = self._step("output", "gather", None, ((0, step.writes[0]),), (self._new_place(level - 1),), level)
            self._exit[node.scope[level - 1]].gathers += (gather,)
            self._link(step, gather)
            step = gather
        flat = self._inline(lambda rows: _flat(rows, depth), ((0, step.writes[0]),), 0)
        self._link(step, flat)

    def _inline(self, run: Callable[..., Any], reads: tuple[tuple[int, int], ...], depth: int) -> Step:
        step = self._step("output", "map", EachStage("output", (run,)), reads, (self._new_place(depth),), depth)
        step.inline = True
        return step

    # Edges --------------------------------------------------------------------------------------------------------

    def _place_node(self, node: Node, entry: Step, leave: Step) -> None:
        self._exit[node] = leave
        # A branch of the rows above is waited for where the rows below are opened (see ``borrowed``).
        parents = [one for one in node.parents if parent_scope(one) == node.scope] + self._waits.get(node, [])
        entry.waits_for = len(parents)
        for parent in parents:
            self._link(self._exit[parent], entry)

    @staticmethod
    def _link(before: Step, after: Step) -> None:
        before.then += (after,)

    # Places -------------------------------------------------------------------------------------------------------

    def _step(
        self,
        name: str,
        does: Does,
        stage: Any,
        reads: tuple[tuple[int, int], ...],
        writes: tuple[int, ...],
        depth: int,
    ) -> Step:
        local = tuple(place for _, place in reads) if all(up == 0 for up, _ in reads) else None
        step = Step(len(self._steps), name, does, stage, reads, writes, local)
        self._depth[step.number] = depth
        self._steps.append(step)
        return step

    def _place(self, column: Column) -> int:
        if column not in self._places:
            self._places[column] = self._new_place(column.depth)
        return self._places[column]

    def _new_place(self, depth: int) -> int:
        while len(self._sizes) <= depth:
            self._sizes.append(0)
        self._sizes[depth] += 1
        return self._sizes[depth] - 1

    def _reads(self, columns: Sequence[Column], depth: int) -> tuple[tuple[int, int], ...]:
        return tuple((depth - column.depth, self._place(column)) for column in columns)

    def _free(self, result: int) -> None:
        """What one step alone reads, in the row that holds it, is freed by that step: pictures are megabytes."""
        readers: Counter[tuple[int, int]] = Counter()
        for step in self._steps:
            depth = self._depth[step.number]
            readers.update({(depth - up, place) for up, place in step.reads})
        for step in self._steps:
            depth = self._depth[step.number]
            alone = {place for up, place in step.reads if up == 0 and readers[depth, place] == 1}
            if step.stage is not None:
                step.frees = tuple(sorted(alone - ({result} if depth == 0 else set())))


def _at_once(steps: Sequence[Step]) -> int | None:
    stages = [step.stage for step in steps if isinstance(step.stage, BatchStage) and step.stage.sized]
    return min((one.policy.max_batch_size * len(one.runs) for one in stages), default=None)


def _flat(rows: Any, depth: int) -> list[Any]:
    """Lists of lists of rows, ``depth`` deep, as one list of rows."""
    for _ in range(depth - 1):
        rows = [row for inner in rows for row in inner]
    return list(rows)
