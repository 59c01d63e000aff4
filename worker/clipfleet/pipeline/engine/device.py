"""The thread that owns a device: takes a batch, drops who is too late, runs, passes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from clipfleet.batching import Closed
from clipfleet.pipeline.engine.batch_loop import BatchLoop, works_of
from clipfleet.pipeline.engine.isolate import Isolator
from clipfleet.pipeline.engine.leash import GivenUp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.batching import Batch
    from clipfleet.pipeline.stage import BatchStage
    from clipfleet.pipeline.work import Task

__all__ = ["DeviceLoop"]


class DeviceLoop(BatchLoop):
    """Runs the stages of one resource, one batch at a time; arguments as for ``BatchLoop``."""

    computes = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._isolators = {
            stage.name: Isolator(self._watched(stage), self._host.is_out_of_memory) for stage in self._stages.values()
        }

    def run(self) -> None:
        """The thread's loop; ends when the group is closed."""
        try:
            while True:
                taken = self._group.take()
                if taken is not None:
                    self._run_batch(*taken)
        except (Closed, GivenUp):
            return

    def release(self, tasks: Sequence[Task]) -> None:
        """Nor is its call waited for by anybody."""
        super().release(tasks)
        self._host.calling(self, begins=False)

    def _run_batch(self, name: str, batch: Batch[Task]) -> None:
        tasks = self._kept(batch.items, self._gate.wanted([work for work in works_of(batch.items) if not work.over]))
        began, self._batch, self._running = time.monotonic(), batch, tasks
        for task in tasks:
            task.lap("wait")
            task.work.notes["batch_size"] = len(tasks)
        values = self._isolators[name](tasks) if tasks else []
        for task in tasks:
            task.lap("run")
        # What was dropped first was not run: the cost model must not learn from it.
        batch.done(time.monotonic() - began if len(tasks) == len(batch) else None)
        self._advance(tasks, values)

    def _watched(self, stage: BatchStage) -> Callable[[Sequence[Task]], Sequence[Any]]:
        host = self._host

        def call(batch: Sequence[Task]) -> Sequence[Any]:
            host.calling(self, begins=True)
            try:
                host.hooks.before_call(stage.name, [task.work for task in batch])
                return self._call(stage, batch)
            finally:
                host.calling(self, begins=False)

        return call
