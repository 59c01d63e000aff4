"""Stages: what a pipeline is made of. A stage says what it does and how it batches, not on which thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.batching import BatchPolicy
    from clipfleet.pipeline.work import Plan, Work
    from clipfleet.schemas.request import Request

__all__ = ["BatchStage", "EachStage", "Pipelines"]


@dataclass(frozen=True, slots=True)
class EachStage:
    """Prepares items one by one, on any thread of a pool: decode, tokenise.

    Attributes:
        name: as in ``Plan.steps``.
        run: one work to its next value; raises ``RequestFailed`` for a verdict on the item.
        chunk: items that go to a thread together; more than one where an item costs less than waking a thread.
    """

    name: str
    run: Callable[[Work], Any]
    chunk: int = 1


@dataclass(frozen=True, slots=True)
class BatchStage:
    """Runs batches: on the device, or against the store.

    Attributes:
        name: as in ``Plan.steps``.
        run: a batch to one value per item, in order; an exception in an item's place fails that item alone.
        policy: how the batch is formed.
        resource: what it occupies. Stages of one resource are run by one thread, one batch at a time: ``device``, or
            ``store:…`` for what may wait for Milvus.
        idle: called by that thread when it has had nothing to do for a while.
    """

    name: str
    run: Callable[[Sequence[Work]], Sequence[Any]]
    policy: BatchPolicy
    resource: Literal["device", "store:write", "store:read"] = "device"
    idle: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Pipelines:
    """A set of pipelines and the stages that they share.

    Attributes:
        plans: by pipeline name, what makes a plan of a request; raises ``RequestFailed`` for bad inputs.
        stages: by name.
        fingerprint: of the model behind them.
        close: frees what they hold.
    """

    plans: dict[str, Callable[[Request], Plan]]
    stages: dict[str, EachStage | BatchStage]
    fingerprint: str
    close: Callable[[], None]
