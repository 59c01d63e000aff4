"""The thread that owns a device: takes a batch, drops who is too late, runs, passes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from clipfleet.batching import Closed
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.worker.connection import REFUSED
from clipfleet.worker.isolate import Isolator
from clipfleet.worker.patience import Patience
from clipfleet.worker.settler import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clipfleet.batching import Batch, BatcherGroup
    from clipfleet.pipeline.stage import BatchStage
    from clipfleet.pipeline.work import Work
    from clipfleet.worker.context import Context

__all__ = ["DeviceLoop"]


class DeviceLoop:
    """Runs the stages of one resource, one batch at a time, the most pressing first.

    Args:
        name: of the resource.
        group: where its batches are formed.
        stages: by name.
        context: what the process shares.
        advance: takes each work's outcome.
    """

    def __init__(
        self,
        name: str,
        group: BatcherGroup,
        stages: Mapping[str, BatchStage],
        context: Context,
        advance: Callable[[Sequence[Work], Sequence[Any]], None],
    ) -> None:
        self.name = name
        self._group = group
        self._context = context
        self._advance = advance
        self._stream = context.connect()
        self._patience = Patience(f"checking leases for {name}", context.stop)
        self._isolators = {
            stage.name: Isolator(self._watched(stage), context.is_out_of_memory) for stage in stages.values()
        }

    def run(self) -> None:
        """The thread's loop; ends when the group is closed."""
        while True:
            try:
                taken = self._group.take()
            except Closed:
                return
            if taken is not None:
                self._run_batch(*taken)

    def _run_batch(self, name: str, batch: Batch[Work]) -> None:
        works = self._wanted(batch.items)
        began = time.monotonic()
        for work in works:
            work.lap("wait")
            work.notes["batch_size"] = len(works)
        values = self._isolators[name](works) if works else []
        for work in works:
            work.lap("run")
        # What was dropped first was not run: the cost model must not learn from it.
        batch.done(time.monotonic() - began if len(works) == len(batch) else None)
        self._advance(works, values)

    def _wanted(self, works: Sequence[Work]) -> list[Work]:
        """Those that are still ours, in time, and not cancelled; the others are settled."""
        context = self._context
        dropped: list[Outcome] = []
        wanted: list[Work] = []
        ours, cancelled = self._asked(works)
        for work, unwanted in zip(ours, cancelled, strict=True):
            error: RequestFailed | None = (
                error_for(ErrorCode.CANCELLED, request_id=work.entry.id) if unwanted else context.late(work)
            )
            if error is None:
                wanted.append(work)
            else:
                dropped.append(Outcome(work.entry, error=error))
        context.settler.put(dropped)
        return wanted

    def _asked(self, works: Sequence[Work]) -> tuple[list[Work], list[bool]]:
        """Which works are ours, and which of them are cancelled; waits for a Redis that is away."""
        while not self._context.stop.is_set():
            try:
                ours = self._context.owned(self._stream, works)
                cancelled = self._stream.cancelled([work.request.id for work in ours])
            except REFUSED as error:
                self._patience.trouble(error)
            else:
                self._patience.fine()
                return ours, cancelled
        return [], []

    def _watched(self, stage: BatchStage) -> Callable[[Sequence[Work]], Sequence[Any]]:
        context = self._context

        def call(batch: Sequence[Work]) -> Sequence[Any]:
            context.calling(True)
            try:
                context.hooks.before_call(stage.name, batch)
                return stage.run(batch)
            finally:
                context.calling(False)

        return call
