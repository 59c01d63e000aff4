"""Threads that take items one by one: decoding, tokenising, plain functions, and asking sources for more rows."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from clipfleet.operators.operator import Item, current
from clipfleet.pipeline.engine.incident import incident
from clipfleet.pipeline.engine.jobs import Jobs
from clipfleet.pipeline.engine.leash import GivenUp, Leash
from clipfleet.pipeline.engine.load import MeanCost
from clipfleet.pipeline.foreign import contained
from clipfleet.schemas.errors import ErrorCode, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.pipeline.engine.host import Host
    from clipfleet.pipeline.stage import EachStage
    from clipfleet.pipeline.work import Task

__all__ = ["Pool", "PoolThread"]

CHUNK_S = 0.002


class Pool:
    """The jobs of one pool and what its threads need.

    Args:
        name: of the pool.
        size: how many threads take from it, the express aside.
        host: who runs the engine.
        advance: takes outcomes of tasks.
        pump: asks a task's source for more rows.
        abandon: takes the task of a source that never answered.
        drop: takes tasks whose request has its verdict.
    """

    def __init__(
        self,
        name: str,
        size: int,
        host: Host,
        advance: Callable[[Sequence[Task], Sequence[Any]], None],
        pump: Callable[[Task, Leash], None],
        abandon: Callable[[Task], None],
        drop: Callable[[Sequence[Task]], None],
    ) -> None:
        self.name = name
        self.size = size
        self.host = host
        self.advance = advance
        self.pump = pump
        self.abandon = abandon
        self.drop = drop
        self.jobs: Jobs[tuple[EachStage | None, list[Task]]] = Jobs()
        self.stopping = False
        self._costs: defaultdict[EachStage, MeanCost] = defaultdict(MeanCost)

    def cost(self, stage: EachStage) -> MeanCost:
        """What an item of a stage costs a thread of this pool."""
        return self._costs[stage]

    def put(self, stage: EachStage | None, tasks: list[Task]) -> None:
        """Have these, of one lane, run by ``stage``; or, without one, their groups continued."""
        self.jobs.put((stage, tasks), tasks[0].work.lane)

    def stop(self) -> None:
        """Let every thread end after what it is at."""
        self.stopping = True
        self.jobs.end(self.size)


class PoolThread:
    """One thread of a pool.

    Args:
        pool: where its jobs come from.
        instance: which of a stage's functions it runs.
        express: whether it is the thread for live jobs that come while others are at bulk ones.
    """

    def __init__(self, pool: Pool, instance: int, *, express: bool = False) -> None:
        self.pool = pool
        self.instance = instance
        self.express = express
        self.computes = not express
        self.name = f"{pool.name or 'prepare'}-{'express' if express else instance}"
        self.leash = Leash()
        self._spent_s = 0.0  # on the items of the present chunk

    def again(self) -> PoolThread:
        """Another one in its place."""
        return PoolThread(self.pool, self.instance, express=self.express)

    def release(self, tasks: Sequence[Task]) -> None:
        """A step is dropped; a source of rows is left to itself."""
        for task in tasks:
            if task.group is None:
                self.pool.drop([task])
            else:
                self.pool.abandon(task)

    def run(self) -> None:
        """The thread's loop."""
        pool = self.pool
        following = pool.jobs.get_express if self.express else pool.jobs.get
        try:
            while (job := following()) is not None:
                if pool.stopping:
                    continue
                stage, tasks = job
                if stage is None:
                    for task in tasks:
                        current.item = Item(task.work.request.id, task.work.deadline)
                        pool.pump(task, self.leash)
                else:
                    self._run(stage, tasks)
        except GivenUp:
            return

    def _run(self, stage: EachStage, tasks: Sequence[Task]) -> None:
        """A chunk saves waking a thread for each item; it must not keep finished ones from a batch."""
        done: list[Task] = []
        values: list[Any] = []
        self._spent_s, since = 0.0, time.monotonic()
        for task in tasks:
            if task.work.over:
                self.pool.drop([task])
                continue
            value = self._one(stage, task)
            done.append(task)
            values.append(value)
            if time.monotonic() - since > CHUNK_S:
                self.pool.advance(done, values)
                self._book(stage, len(done))
                done, values, since = [], [], time.monotonic()
        self.pool.advance(done, values)
        self._book(stage, len(done))

    def _book(self, stage: EachStage, items: int) -> None:
        self.pool.cost(stage).observe(items, self._spent_s)
        self._spent_s = 0.0

    def _one(self, stage: EachStage, task: Task) -> Any:
        """The stage's value for one item, or its verdict."""
        host, work = self.pool.host, task.work
        error = host.late(work)
        if error is not None:
            return error
        came = task.mark
        task.lap("queue")
        current.item = Item(work.request.id, work.deadline)
        began = task.mark
        self.leash.begin((task,))
        try:
            host.hooks.before_prepare(work)
            value = contained(stage.runs[self.instance if len(stage.runs) > 1 else 0], *task.inputs())
        except RequestFailed as verdict:
            value = verdict
        except Exception as unforeseen:  # noqa: BLE001  (foreign code on foreign bytes)
            value = incident(unforeseen, ErrorCode.INTERNAL, work.request.id, stage.name)
        self.leash.end()
        task.lap("prepare")
        self._spent_s += task.mark - began
        if host.observer is not None:
            host.observer.ran(stage.name, self.name, began, task.mark, 1, [work.request.id], [began - came])
        return value
