"""What the threads of batch stages have in common: columns out of tasks, and the call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from clipfleet.pipeline.engine.leash import Leash
from clipfleet.pipeline.foreign import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clipfleet.batching import Batch, BatcherGroup
    from clipfleet.pipeline.engine.host import Host
    from clipfleet.pipeline.stage import BatchStage
    from clipfleet.pipeline.work import Task, Work

    Advance = Callable[[Sequence[Task], Sequence[Any]], None]
    Drop = Callable[[Sequence[Task]], None]

__all__ = ["BatchLoop", "columns_of", "works_of"]


def works_of(tasks: Sequence[Task]) -> list[Work]:
    """The requests of these tasks, each once, in order."""
    return list(dict.fromkeys(task.work for task in tasks))


def columns_of(tasks: Sequence[Task]) -> list[list[Any]]:
    """One list per input column."""
    return [list(column) for column in zip(*(task.inputs() for task in tasks), strict=True)]


class BatchLoop:
    """A thread that takes batches of the stages of one resource, the most pressing first.

    Args:
        name: of the thread.
        instance: which of each stage's functions it runs.
        group: where its batches are formed.
        stages: by name.
        host: who runs the engine.
        advance: takes each task's outcome.
        drop: takes the tasks whose request has its verdict.

    Attributes:
        computes: whether it takes a core for long; else it waits for others.
    """

    computes = False

    def __init__(
        self,
        name: str,
        instance: int,
        group: BatcherGroup,
        stages: Mapping[str, BatchStage],
        host: Host,
        advance: Advance,
        drop: Drop,
    ) -> None:
        self.name = name
        self._instance = instance
        self._group = group
        self._stages = stages
        self._host = host
        self._advance = advance
        self._drop = drop
        self._gate = host.gate(name)
        self.leash = Leash()
        self._batch: Batch[Task] | None = None
        self._running: Sequence[Task] = ()

    def again(self) -> Self:
        """Another one in its place, after a call that never ended."""
        stages, host = self._stages, self._host
        return type(self)(self.name, self._instance, self._group, stages, host, self._advance, self._drop)

    def release(self, tasks: Sequence[Task]) -> None:
        """The batch of a call that never ended is no longer with the stage."""
        if self._batch is not None:
            self._batch.done()
        self._drop(tasks)

    def run(self) -> None:
        """The thread's loop; ends when the group is closed."""
        raise NotImplementedError

    def _kept(self, tasks: Sequence[Task], works: Sequence[Work]) -> list[Task]:
        """The tasks of these works; the others are dropped."""
        if len(works) == len(tasks):
            return list(tasks)
        still = set(works)
        kept = [task for task in tasks if task.work in still]
        if len(kept) < len(tasks):
            self._drop([task for task in tasks if task.work not in still])
        return kept

    def _call(self, stage: BatchStage, tasks: Sequence[Task]) -> Sequence[Any]:
        """Call the stage once, whatever it raises, with the observer told."""
        observer = self._host.observer
        began = time.monotonic()
        waited = [began - task.came for task in tasks] if observer is not None else []
        # If it hangs, the whole batch is lost with its thread, also what had its values before the batch was halved.
        self.leash.begin(self._running or tasks)
        try:
            values: Sequence[Any] = contained(stage.runs[self._instance], *columns_of(tasks))
        finally:
            self.leash.end()
        if observer is not None:
            ids = [task.work.request.id for task in tasks]
            observer.ran(stage.name, self.name, began, time.monotonic(), len(tasks), ids, waited)
        return values
