"""Compiled pipelines: a graph of steps over numbered places, and the stages that they share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clipfleet.pipeline.fields import Field
    from clipfleet.pipeline.stage import BatchStage, EachStage

__all__ = ["Does", "Program", "Served", "Step"]

Does = Literal["map", "flat_map", "filter", "sink", "gather", "pass"]


@dataclass(slots=True, eq=False)
class Step:
    """One use of a stage (or none) at one place of one pipeline.

    Attributes:
        number: within its program.
        name: of the node, for errors and observers.
        does: what becomes of the stage's value.
        stage: what runs; None for ``gather`` and ``pass``.
        reads: for each input column how many rows up it is, and its place there.
        local: the places alone, where all of them are in the row itself.
        writes: the places of its output columns: in its row, in those it opens, or (``gather``) in the one above.
        frees: places that nobody reads after this.
        waits_for: how many steps must have come to a row before this one may.
        then: what follows.
        gathers: for a step that opens rows: what closes them.
        inline: run it at once, in the thread that got here.
        packs: whether it makes the request's own row its one row of outputs, and calls nobody's code for it.
    """

    number: int
    name: str
    does: Does
    stage: EachStage | BatchStage | None
    reads: tuple[tuple[int, int], ...]
    writes: tuple[int, ...]
    local: tuple[int, ...] | None = None
    frees: tuple[int, ...] = ()
    waits_for: int = 1
    then: tuple[Step, ...] = ()
    gathers: tuple[Step, ...] = ()
    inline: bool = False
    packs: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One pipeline, ready to be walked through.

    Attributes:
        name: of the pipeline.
        fields: what the inputs must be.
        first: the steps that begin with the request's row.
        size: places in a row, by depth.
        result: the place in the request's row where the rows of the output come to stand.
        outputs: their columns.
        many: whether the output may have several rows: then the wire carries ``rows``.
        needs_store: whether a stage of it asks the store.
        of_model: whether a model is involved: its fingerprint then stands in the result.
        straight: whether its steps are one line over the request's own row.
        at_once: requests that are run at once where the size of batches was measured; None: it was not.
        claims: the lock under which requests of a straight program are claimed. (Not one for the process: a child that
            was forked while it was held, and compiles its own, would wait for ever.)
    """

    name: str
    fields: Mapping[str, Field]
    first: tuple[Step, ...]
    size: tuple[int, ...]
    result: int
    outputs: tuple[str, ...]
    many: bool
    needs_store: bool
    of_model: bool
    straight: bool
    at_once: int | None = None
    claims: threading.Lock = field(default_factory=threading.Lock)

    def read_inputs(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        """The row that a request begins with.

        Raises:
            RequestFailed: ``bad_request``, or the code of what is wrong with an input.
        """
        row: list[Any] = [None] * self.size[0]
        for place, (name, field_) in enumerate(self.fields.items()):
            row[place] = field_.read(name, (inputs if field_.source == "inputs" else options).get(name))
        return row


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """All pipelines of a process, and the stages that they share.

    Attributes:
        programs: by pipeline name and variant.
        picks: by pipeline name, which variant a request is for.
        stages: every stage, each once.
        fingerprint: of the models behind them.
        close: frees what they share.
    """

    programs: Mapping[str, Mapping[str, Program]]
    picks: Mapping[str, Callable[[Mapping[str, Any]], str]]
    stages: tuple[EachStage | BatchStage, ...]
    fingerprint: str
    close: Callable[[], None] = field(default=lambda: None)

    @property
    def names(self) -> list[str]:
        """Names of the pipelines, sorted."""
        return sorted(self.programs)

    def program(self, pipeline: str, inputs: Mapping[str, Any]) -> Program:
        """The program for a request.

        Raises:
            RequestFailed: ``unknown_pipeline``, or ``bad_request`` when its inputs choose none.
        """
        variants = self.programs.get(pipeline)
        if variants is None:
            served = ", ".join(self.names)
            raise error_for(ErrorCode.UNKNOWN_PIPELINE, f"{pipeline!r} is not served here; this worker serves {served}")
        return variants[self.picks[pipeline](inputs)]

    def uses_store(self, pipeline: str) -> bool:
        """Whether any variant of it asks the store."""
        return any(program.needs_store for program in self.programs.get(pipeline, {}).values())
