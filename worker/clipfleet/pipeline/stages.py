"""Opening the stages of definitions, each once: what is the same in two pipelines is one stage, and fills one batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from clipfleet.operators.operator import BatchOperator, Opened, Operator, Place, StageOptions
from clipfleet.pipeline.sizing import worthwhile
from clipfleet.pipeline.stage import SHARED, BatchStage, EachStage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from clipfleet.batching import BatchPolicy
    from clipfleet.pipeline.definition import Node

__all__ = ["OpenStage", "Stages"]


@dataclasses.dataclass(frozen=True, slots=True)
class OpenStage:
    """What a node runs.

    Attributes:
        prepare: what is done to each item first; None where there is nothing to prepare.
        main: the stage itself.
        operator: what it was made of, if it was an operator.
    """

    prepare: EachStage | None
    main: EachStage | BatchStage
    operator: Operator | None


class Stages:
    """The stages of one process.

    Args:
        place: where operators are opened, unless their stage says otherwise.
        policy: how batches are formed where neither stage nor operator says.
        sized: whether batches on a CPU are made no larger than is worth it, as is measured here.
    """

    def __init__(self, place: Place, policy: BatchPolicy, *, sized: bool = False) -> None:
        self._place = place
        self._policy = policy
        self._sized = sized
        self._open: dict[Hashable, OpenStage] = {}
        self._names: set[str] = set()

    @property
    def all(self) -> tuple[EachStage | BatchStage, ...]:
        """Every stage, each once."""
        found = [stage for one in self._open.values() for stage in (one.prepare, one.main) if stage is not None]
        return tuple(found)

    def stage(self, node: Node, model: str | None) -> OpenStage:
        """The stage of a node; ``model`` is its pipeline's."""
        does, options = node.does, node.options
        assert does is not None  # noqa: S101  (nodes without one have no stage)
        plain = dataclasses.replace(options, name=None)
        try:
            key: Hashable = (does, plain, model if isinstance(does, Operator) else None, node.name)
            known = self._open.get(key)
        except TypeError:  # an operator with a list in it
            key = (id(does), plain, model, node.name)
            known = self._open.get(key)
        if known is None:
            known = self._open[key] = self._opened(node.name, does, options, model)
        return known

    def _opened(self, name: str, does: Callable[..., Any], options: StageOptions, model: str | None) -> OpenStage:
        name = self._unused(name)
        count = options.instances or 1
        if not isinstance(does, Operator):
            if options.max_batch_size is not None:
                batch = BatchStage(
                    name, (does,) * count, self._policy_of(options, None), f"stage:{name}", options.timeout
                )
                return OpenStage(None, batch, None)
            return OpenStage(None, self._each(name, (does,) * count, options), None)
        place = options.at(dataclasses.replace(self._place, model=model))
        if not isinstance(does, BatchOperator):
            runs = tuple(does.open(place) for _ in range(count))
            if not all(map(callable, runs)):
                raise ValueError(f"{name}: open gave {type(runs[0]).__name__} and no function; see BatchOperator")
            return OpenStage(None, self._each(name, cast("Any", runs), options), does)
        return self._batch(name, does, options, [does.open(place) for _ in range(count)], place)

    @staticmethod
    def _each(name: str, runs: tuple[Callable[..., Any], ...], options: StageOptions) -> EachStage:
        # A timeout needs a thread that can be given up, and the pool's are everybody's.
        own = options.instances is not None or options.timeout is not None
        return EachStage(name, runs, name if own else SHARED, timeout=options.timeout)

    def _batch(
        self, name: str, does: BatchOperator, options: StageOptions, opened: list[Opened], place: Place
    ) -> OpenStage:
        first = opened[0]
        resource = f"device:{place.device}" if does.resource == "device" else does.resource
        if (options.instances, options.timeout) != (None, None):
            # Threads of its own: those that it would share have not as many copies of the other stages.
            resource = f"{resource}:{name}" if resource.startswith("store") else f"stage:{name}"
        calls = 1 if options.instances or place.device != "cpu" or does.resource != "device" else place.calls
        if calls > 1 and not does.concurrent:
            calls = 1  # one batch at a time still, though others' run beside it
            resource = f"{resource}:alone" if resource.startswith("device:") else resource
        prepare = None
        if first.prepare is not None:
            prepare = EachStage(self._unused(does.prepares or f"{name}.prepare"), (first.prepare,), chunk=first.chunk)

        def close() -> None:
            for one in opened:
                if one.close is not None:
                    one.close()

        policy = self._policy_of(options, does)
        runs = tuple(one.run for one in opened) * calls
        size = self._worthwhile(name, does, options, runs, first.sample, place)
        if size is not None:
            policy = dataclasses.replace(policy, max_batch_size=size)
        sized = size is not None
        main = BatchStage(name, runs, policy, resource, options.timeout, first.idle, first.flush, close, sized=sized)
        return OpenStage(prepare, main, does)

    def _worthwhile(
        self,
        name: str,
        does: BatchOperator,
        options: StageOptions,
        runs: Sequence[Callable[..., Any]],
        sample: Any,
        place: Place,
    ) -> int | None:
        """The size of batches that is worth it; None where somebody said one, or it cannot be known."""
        said = options.max_batch_size or does.max_batch_size
        if not self._sized or said is not None or sample is None or place.device != "cpu":
            return None
        threads = place.threads // place.calls if does.concurrent else place.threads
        try:
            return worthwhile(runs, sample, self._policy.max_batch_size, one_thread=threads == 1)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def _policy_of(self, options: StageOptions, does: BatchOperator | None) -> BatchPolicy:
        size = options.max_batch_size or (does.max_batch_size if does else None) or self._policy.max_batch_size
        delay = options.max_delay if options.max_delay is not None else (does.max_delay if does else None)
        return dataclasses.replace(
            self._policy, max_batch_size=size, max_delay_s=self._policy.max_delay_s if delay is None else delay
        )

    def _unused(self, name: str) -> str:
        found, number = name, 1
        while found in self._names:
            number += 1
            found = f"{name}-{number}"
        self._names.add(found)
        return found
