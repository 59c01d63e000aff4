"""Stages: what runs. A stage says what it does and how it batches; the engine says on which thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.batching import BatchPolicy

__all__ = ["SHARED", "BatchStage", "EachStage"]

SHARED = ""


@dataclass(frozen=True, slots=True, eq=False)
class EachStage:
    """Runs items one by one: decode, tokenise, a plain function.

    Attributes:
        name: in errors and figures.
        runs: one value per input column to the stage's value; one function per instance. The shared pool has one.
        pool: ``SHARED``, or a name of its own for a stage with instances of its own.
        chunk: items that go to a thread together; more than one where an item costs less than waking a thread.
        timeout: seconds after which a call is taken for hung.
        close: frees what it holds.
    """

    name: str
    runs: tuple[Callable[..., Any], ...]
    pool: str = SHARED
    chunk: int = 1
    timeout: float | None = None
    close: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BatchStage:
    """Runs batches: on a device, against the store, or a plain function over lists.

    Attributes:
        name: in errors and figures.
        runs: one list per input column to one value per item, in order; an exception in an item's place fails that
            item alone. One function for each thread that runs it.
        policy: how a batch is formed.
        resource: what it occupies. Stages of one resource are run by the same threads, as many as each has ``runs``;
            ``store:…`` may wait for Milvus.
        timeout: seconds after which a call is taken for hung.
        idle: called when there has been nothing to do for a while.
        flush: makes what was written visible.
        close: frees what it holds.
        sized: whether the size of its batches was measured, and not said.
    """

    name: str
    runs: tuple[Callable[..., Sequence[Any]], ...]
    policy: BatchPolicy
    resource: str
    timeout: float | None = None
    idle: Callable[[], object] | None = field(default=None)
    flush: Callable[[], object] | None = field(default=None)
    close: Callable[[], object] | None = field(default=None)
    sized: bool = False

    @property
    def stores(self) -> bool:
        """Whether it asks the store, which may be away for minutes."""
        return self.resource.startswith("store")
