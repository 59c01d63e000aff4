"""The stages of one process at work: who prepares, who runs, who asks the store, and what comes after.

::

    submit ──▶ pools: decode, tokenise, item by item ──▶ batchers ──▶ device threads ──▶ store threads ──▶ host
                  ▲                                                        │
                  └──────────── rows: which step comes next ◀──────────────┘

One thread per resource, so that a batch runs while the next is prepared and the one before is written and settled.
Each structure has one owner; tasks move from one to the next and are never shared.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from clipfleet.batching import BatcherGroup, Closed, Lane
from clipfleet.pipeline.engine.device import DeviceLoop
from clipfleet.pipeline.engine.forecast import Forecast
from clipfleet.pipeline.engine.guard import start_thread
from clipfleet.pipeline.engine.incident import incident
from clipfleet.pipeline.engine.pool import Pool, PoolThread
from clipfleet.pipeline.engine.store_loop import StoreLoop
from clipfleet.pipeline.engine.watchdog import Watch, Watchdog
from clipfleet.pipeline.foreign import unnoted
from clipfleet.pipeline.moves import Moves
from clipfleet.pipeline.rows import Rows
from clipfleet.pipeline.stage import SHARED, BatchStage, EachStage
from clipfleet.schemas.errors import ErrorCode, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clipfleet.batching import Batcher, BatcherStats
    from clipfleet.pipeline.engine.host import Finished, Host
    from clipfleet.pipeline.engine.leash import Leash
    from clipfleet.pipeline.program import Served, Step
    from clipfleet.pipeline.work import Row, Task, Work

__all__ = ["Engine"]

log = logging.getLogger(__name__)


class Engine:
    """Runs requests through their programs and hands each outcome to the host.

    Args:
        served: what there is to run.
        host: who runs it.
        threads: size of the shared pool.
        rows: rows below requests that may be live at once.
        most_s: seconds after which a call that has no timeout and holds a pool's thread ends it all; None: never.
        nice: how far threads that compute let others of the machine go first, as for ``start_thread``.

    Attributes:
        served: as given.
        forecast: what its stages cost, and who cannot be answered in time any more.
    """

    def __init__(
        self,
        served: Served,
        host: Host,
        *,
        threads: int,
        rows: int = 256,
        most_s: float | None = None,
        nice: int = 0,
    ) -> None:
        self.served = served
        self._nice = nice
        self._host = host
        self._rows = Rows(rows, host)
        self._groups: dict[str, BatcherGroup] = {}
        self._batchers: dict[BatchStage, Batcher[Task]] = {}
        self._pools = {SHARED: self._pool(SHARED, threads)}
        self._watched: list[Watch] = []
        self._most_s = most_s
        resources: dict[str, list[BatchStage]] = {}
        for stage in served.stages:
            if isinstance(stage, BatchStage):
                group = self._groups.setdefault(stage.resource, BatcherGroup())
                self._batchers[stage] = group.add(stage.name, stage.policy)
                resources.setdefault(stage.resource, []).append(stage)
            elif stage.pool not in self._pools:
                self._pools[stage.pool] = self._pool(stage.pool, len(stage.runs))
        self._loops = [loop for resource, stages in resources.items() for loop in self._loops_of(resource, stages)]
        self._loops += [
            self._timed(PoolThread(pool, number), self._timeout_of(pool))
            for pool in self._pools.values()
            for number in range(pool.size)
        ]
        self._loops.append(self._timed(PoolThread(self._pools[SHARED], 0, express=True), None))
        self.forecast = Forecast(served.stages, self._batchers, self._pools)
        self._stopped = threading.Event()
        self._watchdog: threading.Thread | None = None

    def start(self) -> None:
        """Start the threads."""
        started, self._loops = self._loops, []
        for loop in started:
            self._start(loop)
        if self._watched:
            watchdog = Watchdog(self._watched, self._host, self._start, self._stopped)
            self._watchdog = start_thread("watchdog", watchdog.run, self._host.crashed)

    def _start(self, loop: Any) -> None:
        self._loops.append(loop)

        def run() -> None:
            try:
                loop.run()
            finally:
                loop.leash.ended.set()

        start_thread(loop.name, run, self._host.crashed, nice=self._nice if loop.computes else 0)

    def stop(self) -> None:
        """Finish what runs, drop what waits (a worker's leases are still held: it hands it back), and return."""
        for group in self._groups.values():
            group.close(drain=False)
        for pool in self._pools.values():
            pool.stop()
        self._wait()
        self._stopped.set()
        if self._watchdog is not None:
            self._watchdog.join()
        self._wait()  # for who took a hung one's place in the very last moment
        self.served.close()

    def _wait(self) -> None:
        for loop in self._loops:  # it may grow meanwhile
            loop.leash.ended.wait()

    @property
    def store_troubled(self) -> bool:
        """Whether the store did not do what it was last asked."""
        return any(loop.troubled for loop in self._loops if isinstance(loop, StoreLoop))

    def stats(self) -> dict[str, BatcherStats]:
        """Batches so far, by stage."""
        return {name: group[name].stats() for group in self._groups.values() for name in group.names}

    def submit(self, works: Iterable[Work], mark: float) -> list[Finished]:
        """Begin works; ``mark`` is when they were read (monotonic, s).

        Returns:
            Those that no other thread was needed for, which have ended; ``Host.finished`` is not told of them. So
            whoever began them may end them without handing them to yet another thread.
        """
        moves = Moves()
        for work in works:
            self._rows.begin(work, mark, moves)
            work.request.inputs.clear()  # the rows hold what is needed, and let go of it: pictures are megabytes
        ended, moves.ended = self._finished(moves), []
        self._schedule(self._heeded(moves))
        return ended

    # Outcomes -----------------------------------------------------------------------------------------------------

    def _advance(self, tasks: Sequence[Task], values: Sequence[Any]) -> None:
        """Take the outcome of a stage for each task: on to what follows, or to the host."""
        failures: list[tuple[Work, RequestFailed]] = []
        moves = Moves()
        watching = self._host.observer is not None and self._host.observer.values
        for task, given in zip(tasks, values, strict=True):
            value = self._unnoted(task, given)
            if watching:
                self._tell(task, value)
            if isinstance(value, RequestFailed):
                self._retract(task)
                if task.work.claim():
                    failures.append((task.work, value))
                self._rows.drop(task, moves)
            else:
                self._rows.done(task, value, moves)
        self._host.failed(failures)
        self._schedule(
            self._heeded(moves), {(task.row, task.step.then[0]): task for task in tasks if task.ticket is not None}
        )

    @staticmethod
    def _unnoted(task: Task, value: Any) -> Any:
        try:
            return unnoted(task.work, value)
        except Exception as error:  # noqa: BLE001  (notes are somebody's objects, as the value is)
            return incident(error, ErrorCode.INTERNAL, task.work.request.id, task.step.name)

    def _drop(self, tasks: Sequence[Task]) -> None:
        """Tasks that are not run: their request is another worker's by now, or has its verdict."""
        moves = Moves()
        for task in tasks:
            self._retract(task)
            task.work.claim()
            self._rows.drop(task, moves)
        self._schedule(moves.tasks)

    def _pump(self, task: Task, leash: Leash) -> None:
        self._schedule(self._heeded(self._rows.pump(task, leash, self._schedule)))

    def _abandon(self, task: Task) -> None:
        self._schedule(self._rows.abandon(task).tasks)

    def _heeded(self, moves: Moves) -> list[Task]:
        """What follows, after the host was told, once for all of them, which requests that was all of."""
        self._host.failed([(work, self._verdict(work, error)) for work, error in moves.broken])
        self._host.finished(self._finished(moves))
        return moves.tasks

    @staticmethod
    def _finished(moves: Moves) -> list[Finished]:
        return [(work, work.row.values[work.program.result] or []) for work in moves.ended]

    @staticmethod
    def _verdict(work: Work, error: Exception) -> RequestFailed:
        if isinstance(error, RequestFailed):
            return error
        return incident(error, ErrorCode.INTERNAL, work.request.id)

    def _tell(self, task: Task, value: Any) -> None:
        observer = self._host.observer
        assert observer is not None  # noqa: S101  (asked before)
        observer.made(task.work.request.id, task.step.name, task.row.path, task.inputs(), value)

    # Between stages -----------------------------------------------------------------------------------------------

    def _schedule(self, tasks: Sequence[Task], announced: dict[tuple[Row, Step], Task] | None = None) -> None:
        """Put each task where it is run; ``announced`` are those before them that hold a ticket for what follows."""
        chunks: dict[tuple[EachStage, Lane], list[Task]] = {}
        waiting: dict[BatchStage, list[Task]] = {}
        for task in tasks:
            stage = task.step.stage
            if task.group is not None:
                self._pools[stage.pool if isinstance(stage, EachStage) else SHARED].put(None, [task])
            elif isinstance(stage, BatchStage):
                # From the stage that prepared it it comes with the ticket that was announced for it there.
                before = announced.pop((task.row, task.step), None) if announced else None
                if before is not None:
                    task.ticket, before.ticket = before.ticket, None
                waiting.setdefault(stage, []).append(task)
            elif isinstance(stage, EachStage):
                key = stage, task.work.lane
                chunk = chunks.setdefault(key, [])
                chunk.append(task)
                if len(chunk) >= stage.chunk:
                    self._prepare(stage, chunks.pop(key))
        for (stage, _), chunk in chunks.items():
            self._prepare(stage, chunk)
        for batching, group in waiting.items():
            self._enqueue(batching, group)
        for left in (announced or {}).values():  # what was prepared went elsewhere, or nowhere
            self._retract(left)

    def _enqueue(self, stage: BatchStage, tasks: list[Task]) -> None:
        batcher = self._batchers[stage]
        if stage.stores:
            self._host.to_store([task.work for task in tasks])
        parts: dict[tuple[Lane, bool], list[Task]] = {}
        for task in tasks:
            parts.setdefault((task.work.lane, task.ticket is not None), []).append(task)
        for (lane, ticketed), mine in parts.items():
            try:
                batcher.put_many(
                    mine,
                    enqueued_at=[task.work.enqueued_at for task in mine],
                    lane=lane,
                    tickets=[task.ticket for task in mine if task.ticket is not None] if ticketed else None,
                )
            except Closed:
                return  # stopping: what is not taken any more stays held, and is handed back
            for task in mine:
                task.ticket = None

    def _prepare(self, stage: EachStage, chunk: list[Task]) -> None:
        """Put a chunk, of one lane, to its pool, announced where its tasks come to next."""
        coming: dict[Batcher[Task], list[Task]] = {}
        for task in chunk:
            after = self._batcher_after(task.step)
            if after is not None:
                coming.setdefault(after, []).append(task)
        for batcher, tasks in coming.items():
            for task, ticket in zip(tasks, batcher.announce(len(tasks), lane=chunk[0].work.lane), strict=True):
                task.ticket = ticket
        self._pools[stage.pool].put(stage, chunk)

    def _retract(self, task: Task) -> None:
        if task.ticket is not None:
            after = self._batcher_after(task.step)
            if after is not None:
                after.retract(task.ticket)
            task.ticket = None

    def _batcher_after(self, step: Step) -> Batcher[Task] | None:
        """The batcher that a task of this step will come to next, if that is certain."""
        then = step.then
        if step.does != "map" or len(then) != 1 or then[0].waits_for != 1:
            return None
        stage = then[0].stage
        return self._batchers[stage] if isinstance(stage, BatchStage) else None

    # Making -------------------------------------------------------------------------------------------------------

    def _pool(self, name: str, size: int) -> Pool:
        return Pool(name, size, self._host, self._advance, self._pump, self._abandon, self._drop)

    def _timeout_of(self, pool: Pool) -> float | None:
        stages = (one for one in self.served.stages if isinstance(one, EachStage) and one.pool == pool.name)
        return None if pool.name == SHARED else next(stages).timeout

    def _loops_of(self, resource: str, stages: list[BatchStage]) -> list[Any]:
        """The threads of a resource; a stage with instances has a resource of its own."""
        kind = StoreLoop if stages[0].stores else DeviceLoop
        count = max(len(stage.runs) for stage in stages)
        group, members = self._groups[resource], {stage.name: stage for stage in stages}
        names = [resource if count == 1 else f"{resource}-{number}" for number in range(count)]
        return [
            self._timed(kind(name, number, group, members, self._host, self._advance, self._drop), stages[0].timeout)
            for number, name in enumerate(names)
        ]

    def _timed(self, loop: Any, timeout: float | None) -> Any:
        if timeout is not None:
            self._watched.append(Watch(loop, timeout))
        elif self._most_s is not None and isinstance(loop, PoolThread):
            self._watched.append(Watch(loop, self._most_s, alone=False))
        return loop
