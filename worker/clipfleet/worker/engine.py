"""The stages of one process at work: who prepares, who runs, who asks the store, and what comes after.

::

    submit ──▶ pool: decode, tokenise, item by item ──▶ batcher ──▶ device thread ──▶ store threads ──▶ settler
                                                                                   └───────────────────▶ settler

One thread per resource, so that a batch runs while the next is prepared and the one before is written and settled.
Each structure has one owner; works move from one to the next and are never shared.
"""

from __future__ import annotations

import logging
import queue
import time
from typing import TYPE_CHECKING, Any

from clipfleet.batching import BatcherGroup, Closed, Lane
from clipfleet.pipeline.stage import BatchStage, EachStage
from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.worker.device import DeviceLoop
from clipfleet.worker.guard import start_thread
from clipfleet.worker.incident import incident
from clipfleet.worker.settler import Outcome
from clipfleet.worker.store_loop import StoreLoop

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from clipfleet.pipeline.stage import Pipelines
    from clipfleet.pipeline.work import Work
    from clipfleet.worker.context import Context

__all__ = ["Engine"]

CHUNK_S = 0.002

log = logging.getLogger(__name__)


class Engine:
    """Runs works through their stages and hands each outcome to the settler.

    Args:
        pipelines: what there is to run.
        context: what all parts of the process share.
        decode_threads: size of the pool.
        store_limit: most works that may wait for the store.
    """

    def __init__(self, pipelines: Pipelines, context: Context, *, decode_threads: int, store_limit: int) -> None:
        self.pipelines = pipelines
        self._context = context
        self._store_limit = store_limit
        self._jobs: queue.SimpleQueue[tuple[EachStage, list[Work]] | None] = queue.SimpleQueue()
        self._pool_size = decode_threads
        self._stopping = False
        self._groups: dict[str, BatcherGroup] = {}
        stages: dict[str, list[BatchStage]] = {}
        for stage in pipelines.stages.values():
            if isinstance(stage, BatchStage):
                self._groups.setdefault(stage.resource, BatcherGroup()).add(stage.name, stage.policy)
                stages.setdefault(stage.resource, []).append(stage)
        self._loops: list[DeviceLoop | StoreLoop] = [
            (StoreLoop if resource.startswith("store") else DeviceLoop)(
                resource, self._groups[resource], {stage.name: stage for stage in members}, context, self.advance
            )
            for resource, members in stages.items()
        ]
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for loop in self._loops:
            self._threads.append(start_thread(loop.name, loop.run))
        for number in range(self._pool_size):
            self._threads.append(start_thread(f"prepare-{number}", self._prepare_loop))

    def stop(self) -> None:
        """Finish what runs, drop what waits (its leases are still held: it can be handed back), and return."""
        self._stopping = True
        for group in self._groups.values():
            group.close(drain=False)
        for _ in range(self._pool_size):
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self.pipelines.close()

    @property
    def store_full(self) -> bool:
        """Whether no more work for the store should be begun."""
        return self._context.ledger.stored >= self._store_limit

    @property
    def store_troubled(self) -> bool:
        """Whether the store did not do what it was last asked."""
        return any(loop.troubled for loop in self._loops if isinstance(loop, StoreLoop))

    def submit(self, works: Sequence[Work]) -> None:
        """Begin works that were just read."""
        chunks: dict[str, list[Work]] = {}
        ready: list[Work] = []
        for work in works:
            stage = self._stage(work.stage)
            if not isinstance(stage, EachStage):
                ready.append(work)
                continue
            self._announce(work)
            chunk = chunks.setdefault(stage.name, [])
            chunk.append(work)
            if len(chunk) >= stage.chunk:
                self._jobs.put((stage, chunks.pop(stage.name)))
        for name, chunk in chunks.items():
            stage = self.pipelines.stages[name]
            assert isinstance(stage, EachStage)  # noqa: S101  (put there above)
            self._jobs.put((stage, chunk))
        self._pass_on(ready)

    def advance(self, works: Sequence[Work], values: Sequence[Any]) -> None:
        """Take the outcome of a batch stage for each work: on to the next stage, or to the settler."""
        failed: list[Outcome] = []
        going: list[Work] = []
        for work, value in zip(works, values, strict=True):
            if isinstance(value, RequestFailed):
                failed.append(Outcome(work.entry, error=value))
            else:
                work.value = value
                work.step += 1
                going.append(work)
        self._context.settler.put(failed)
        self._pass_on(going)

    def stats(self) -> dict[str, Any]:
        """Batches so far, by stage."""
        return {name: group[name].stats() for group in self._groups.values() for name in group.names}

    # Preparing ----------------------------------------------------------------------------------------------------

    def _prepare_loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._stopping:
                continue
            stage, works = job
            done: list[Work] = []
            since = time.monotonic()
            for work in works:
                if self._prepare(stage, work):
                    done.append(work)
                # A chunk saves waking a thread for each item; it must not keep finished ones from a batch.
                if time.monotonic() - since > CHUNK_S:
                    self._pass_on(done)
                    done, since = [], time.monotonic()
            self._pass_on(done)

    def _prepare(self, stage: EachStage, work: Work) -> bool:
        error: RequestFailed | None = self._context.late(work)
        if error is None:
            try:
                work.lap("queue")
                self._context.hooks.before_prepare(work)
                work.value = stage.run(work)
            except RequestFailed as verdict:
                error = verdict
            except Exception as unforeseen:  # noqa: BLE001  (one item's decode is foreign code on foreign bytes)
                error = incident(unforeseen, ErrorCode.INTERNAL, work.request.id)
        if error is not None:
            self._retract(work)
            self._context.settler.put([Outcome(work.entry, error=error)])
            return False
        work.lap("prepare")
        work.request.inputs.clear()  # the encoded picture is of no use any more, and may be megabytes
        work.step += 1
        return True

    def _announce(self, work: Work) -> None:
        after = self._batcher_after(work)
        if after is not None:
            work.ticket = after.announce()[0]

    def _retract(self, work: Work) -> None:
        after = self._batcher_after(work)
        if after is not None and work.ticket is not None:
            after.retract(work.ticket)

    def _batcher_after(self, work: Work) -> Any:
        following = work.plan.steps[work.step + 1 : work.step + 2]
        stage = self._stage(following[0]) if following else None
        return self._groups[stage.resource][stage.name] if isinstance(stage, BatchStage) else None

    # Between stages -----------------------------------------------------------------------------------------------

    def _stage(self, name: str | None) -> EachStage | BatchStage | None:
        return None if name is None else self.pipelines.stages[name]

    def _pass_on(self, works: Sequence[Work]) -> None:
        finished: list[Outcome] = []
        waiting: dict[str, list[Work]] = {}
        for work in works:
            stage = self._stage(work.stage)
            if stage is None:
                finished.append(self._finish(work))
            elif isinstance(stage, BatchStage):
                waiting.setdefault(stage.name, []).append(work)
            else:  # preparing again, after a batch
                self._jobs.put((stage, [work]))
        for name, group in waiting.items():
            self._enqueue(name, group)
        self._context.settler.put(finished)

    def _enqueue(self, name: str, works: list[Work]) -> None:
        stage = self.pipelines.stages[name]
        assert isinstance(stage, BatchStage)  # noqa: S101  (sorted by kind above)
        batcher = self._groups[stage.resource][name]
        if stage.resource.startswith("store"):
            self._context.ledger.to_store([work.entry for work in works])
        for lane in Lane:
            mine = [work for work in works if work.lane is lane]
            # From a preparing stage all come with a ticket, from elsewhere none does.
            tickets = [work.ticket for work in mine if work.ticket is not None]
            try:
                batcher.put_many(
                    mine, enqueued_at=[work.enqueued_at for work in mine], lane=lane, tickets=tickets or None
                )
            except Closed:
                return  # stopping: what is not taken any more stays held, and is handed back
            for work in mine:
                work.ticket = None

    def _finish(self, work: Work) -> Outcome:
        try:
            outputs = work.plan.finish(work)
        except Exception as unforeseen:  # noqa: BLE001  (a pipeline's own code)
            return Outcome(work.entry, error=incident(unforeseen, ErrorCode.INTERNAL, work.request.id))
        work.timing["age"] = round((time.monotonic() - work.enqueued_at) * 1000.0, 3)
        model = self.pipelines.fingerprint if work.plan.model else ""
        return Outcome(work.entry, None, outputs, model, work.notes, work.timing)
