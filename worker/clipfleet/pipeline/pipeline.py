"""Closed definitions: what can be called, streamed through, drawn, and served."""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any, Self

from clipfleet.pipeline.definition import Flow, Node, PipelineError
from clipfleet.pipeline.graph import ordered
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clipfleet.operators.operator import Services
    from clipfleet.pipeline.local import Local
    from clipfleet.pipeline.observer import Observer
    from clipfleet.pipeline.result import Result
    from clipfleet.pipeline.table import Table

__all__ = ["Choice", "Pipeline", "choice", "close_flow"]

_numbers = itertools.count(1)


class Pipeline:
    """A definition that is closed by ``output``. Immutable; calls may come from any thread.

    The first call starts its threads and opens its operators, here and in this process; a worker serves the same
    object with ``clipfleet worker --pipeline module:name``.

    Attributes:
        flow: the definition; its head is the output.
        outputs: names of the columns that it gives.
        name: for errors; a worker serves it under the name that it is found by.
    """

    def __init__(self, flow: Flow, outputs: tuple[str, ...], name: str = "") -> None:
        self.flow = flow
        self.outputs = outputs
        self.name = name or f"pipeline-{next(_numbers)}"
        self._starting = threading.Lock()
        self._local: Local | None = None

    @property
    def nodes(self) -> list[Node]:
        """Its steps, each after all that it waits for."""
        return ordered(self.flow.head)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that a call gives."""
        return tuple(self.flow.fields)

    def variants(self) -> Mapping[str, Pipeline]:
        """The definitions that it chooses among; itself alone, under ''."""
        return {"": self}

    def pick(self, _given: Mapping[str, Any]) -> str:
        """Which of ``variants`` a request is for."""
        return ""

    # Here and now -------------------------------------------------------------------------------------------------

    def __call__(self, *values: Any, **named: Any) -> Table:
        """Run one request here.

        Args:
            *values: the inputs, in order.
            **named: inputs by name.

        Returns:
            Its rows: one, unless rows were opened and not closed again, or filtered.

        Raises:
            RequestFailed: what a stage said of it.
            TypeError: there is no such input.
        """
        return self.local().run(self._given(values, named)).table

    def batch(self, items: Iterable[Any], *, max_in_flight: int | None = None) -> Iterator[Result]:
        """Stream many requests through, in order; stages overlap and form batches.

        Args:
            items: each the value of the only input; a tuple of values; or a dict of inputs by name. Read only as far
                as there is room.
            max_in_flight: how many may be under way; None: enough to fill each stage's batches twice.

        Yields:
            One ``Result`` for each, ``ok`` or with its ``error``: a failed item costs no other.

        Raises:
            Exception: what ``items`` raises, after the results of all that it gave.
            TypeError: an item has too many values, or names an input that is not there.
        """
        given = (self._given_item(item) for item in items)
        return self.local().stream(given, max_in_flight)

    def flush(self) -> None:
        """Wait until all that was begun is done, and let stages make what they wrote visible."""
        if self._local is not None:
            self._local.flush()

    def close(self) -> None:
        """Stop the threads and free the models; the next call starts them again."""
        with self._starting:
            local, self._local = self._local, None
        if local is not None:
            local.close()

    def open(
        self,
        *,
        services: Services | None = None,
        device: str = "cpu",
        max_batch_size: int = 64,
        max_delay: float = 0.01,
        observer: Observer | None = None,
    ) -> Pipeline:
        """Start it here with other settings than a first call would.

        Args:
            services: models, store and fetching; None: the demo model, and Milvus by ``MILVUS_URI``.
            device: where models run unless a stage says.
            max_batch_size: of stages that do not say.
            max_delay: seconds, of stages that do not say.
            observer: told of every call of a stage.

        Raises:
            ModelError: a model or a device cannot be had.
            PipelineError: it is open already.
        """
        from clipfleet.pipeline.local import Local  # noqa: PLC0415  (defining costs no engine)

        with self._starting:
            if self._local is not None:
                raise PipelineError(f"{self.name} is open already; close it first")
            self._local = Local(
                self,
                services=services,
                device=device,
                max_batch_size=max_batch_size,
                max_delay=max_delay,
                observer=observer,
            )
        return self

    def local(self) -> Local:
        """What runs it here; started if it is not."""
        if self._local is not None and self._local.process != os.getpid():
            # A fork has the objects and none of the threads: whoever waited for one would wait for ever.
            self._starting, self._local = threading.Lock(), None
        if self._local is None:
            try:
                self.open()
            except PipelineError:
                if self._local is None:
                    raise
        local = self._local
        assert local is not None  # noqa: S101  (opened above, or by another thread)
        return local

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    # Inside -------------------------------------------------------------------------------------------------------

    def _given(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        if len(values) > len(self.inputs):
            raise TypeError(f"{self.name} takes {counted(len(self.inputs), 'input')} ({', '.join(self.inputs)})")
        given = dict(zip(self.inputs, values, strict=False))
        for name, value in named.items():
            if name in given or name not in self.inputs:
                raise TypeError(f"{self.name} has no input {name!r} left; it takes {', '.join(self.inputs)}")
            given[name] = value
        return given

    def _given_item(self, item: Any) -> dict[str, Any]:
        if isinstance(item, dict) and item and set(item) <= set(self.inputs):
            return item
        if isinstance(item, dict) and len(self.inputs) > 1 and not set(item).isdisjoint(self.inputs):
            return self._given((), item)  # a name that is wrong among right ones: it says which
        if isinstance(item, tuple) and len(self.inputs) > 1:
            return self._given(item, {})
        return self._given((item,), {})


class Choice(Pipeline):
    """Pipelines for one purpose, chosen by which input is there; made by ``pipeline.choice``."""

    def __init__(self, variants: Mapping[str, Pipeline], name: str = "") -> None:
        for key, one in variants.items():
            if key not in one.inputs:
                raise PipelineError(f"choice: the pipeline for {key!r} has no such input; it takes {one.inputs}")
        first = next(iter(variants.values()))
        super().__init__(first.flow, first.outputs, name)
        self._variants = dict(variants)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of all of them."""
        return tuple(dict.fromkeys(name for one in self._variants.values() for name in one.inputs))

    @property
    def nodes(self) -> list[Node]:
        """The steps of all of them."""
        return list(dict.fromkeys(node for one in self._variants.values() for node in one.nodes))

    def variants(self) -> Mapping[str, Pipeline]:
        """By the input that chooses them."""
        return self._variants

    def pick(self, given: Mapping[str, Any]) -> str:
        """The one whose input is given.

        Raises:
            BadInput: ``bad_request``, none of them is given, or several.
        """
        there = [name for name in self._variants if given.get(name) is not None]
        if len(there) != 1:
            names = ", ".join(self._variants)
            raise error_for(ErrorCode.BAD_REQUEST, f"give exactly one of {names}; {', '.join(there) or 'none'} given")
        return there[0]


def choice(**variants: Pipeline) -> Choice:
    """One pipeline out of several, by which input a request gives: ``choice(text=by_words, image=by_picture)``.

    Raises:
        PipelineError: a pipeline has no input of the name that chooses it, or there is none.
    """
    if not variants:
        raise PipelineError("choice: name at least one pipeline")
    return Choice(variants)


def close_flow(flow: Flow, columns: tuple[str, ...]) -> Pipeline:
    """End a flow; see ``Flow.output``."""
    what = f"output {', '.join(map(repr, columns))}"
    if not columns:
        raise PipelineError("output: name at least one column")
    reads = flow._read(what, columns)  # noqa: SLF001  (the flow's other half)
    node = Node("output", "output", "output", (flow.head,), reads, scope=flow.scope)
    try:
        nodes = ordered(node)
    except ValueError as error:
        raise PipelineError(f"{what}: a cycle: {error}") from None
    used = {id(column) for one in nodes for column in one.reads}
    for column in nodes[0].writes:
        if id(column) not in used:
            raise PipelineError(f"input {column.name!r}: no stage and no output uses it")
    return Pipeline(Flow(node, flow.scope, flow.columns, flow.fields), columns)
