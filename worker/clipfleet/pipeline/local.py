"""A pipeline at work in this process: the engine that a worker runs, without a queue."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from clipfleet.batching import BatchPolicy, Lane
from clipfleet.operators.cores import usable_cores
from clipfleet.operators.here import local_services
from clipfleet.operators.operator import OMIT, Place
from clipfleet.operators.services import ProcessServices
from clipfleet.pipeline.compile import compile_pipelines
from clipfleet.pipeline.engine import Engine, Hooks, incident
from clipfleet.pipeline.result import Result
from clipfleet.pipeline.stage import BatchStage
from clipfleet.pipeline.table import Table
from clipfleet.pipeline.work import Work
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.request import Request

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from clipfleet.batching import BatcherStats
    from clipfleet.operators.operator import Services
    from clipfleet.pipeline.observer import Observer
    from clipfleet.pipeline.pipeline import Pipeline

__all__ = ["Local"]

NAME = "local"
DEADLINE_S = 24 * 3600.0
# A source that gives sooner is read on: stages that are quicker than it are fed best from a full line.
SLOW_S = 0.001


class Local:
    """Runs one pipeline here; made by ``Pipeline.open``, whose arguments these are."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        services: Services | None,
        device: str,
        max_batch_size: int,
        max_delay: float,
        observer: Observer | None,
    ) -> None:
        self.process = os.getpid()
        own = local_services() if services is None else services
        self._served = compile_pipelines(
            {NAME: pipeline},
            Place(own, device, threads=usable_cores()),
            BatchPolicy(max_batch_size, max_delay),
            close=own.close if isinstance(own, ProcessServices) and services is None else lambda: None,
        )
        self._host = _LocalHost(observer)
        # A request's id is its number here: whoever watches can tell which of its own it is.
        self._numbers = itertools.count(1)
        stages = self._served.stages
        takes = [one.policy.max_batch_size * len(one.runs) for one in stages if isinstance(one, BatchStage)]
        self._most = 2 * max([16, *takes])
        self._engine = Engine(self._served, self._host, threads=usable_cores(), rows=2 * self._most)
        self._engine.start()

    def run(self, inputs: dict[str, Any]) -> Result:
        """Run one request to its end."""
        return self._submit(inputs).result()

    def stream(self, many: Iterable[dict[str, Any]], max_in_flight: int | None) -> Iterator[Result]:
        """Run many, in order, reading only as far as there is room."""
        most = max_in_flight or self._most
        if most < 1:
            raise ValueError(f"max_in_flight must be at least 1, not {most}")
        waiting: deque[Future[Result]] = deque()
        try:
            broken = yield from self._feed(iter(many), waiting, most)
            while waiting:
                yield waiting.popleft().result()
            if broken is not None:
                raise broken
        finally:
            for future in waiting:
                future.cancel()

    def _feed(
        self, source: Iterator[dict[str, Any]], waiting: deque[Future[Result]], most: int
    ) -> Generator[Result, None, Exception | None]:
        """Read all. While the source takes its time, what is done is given; what it raises waits its turn."""
        while True:
            began = time.monotonic()
            try:
                inputs = next(source, None)
            except Exception as error:  # noqa: BLE001  (somebody's iterator)
                return error
            if inputs is None:
                return None
            slow = time.monotonic() - began > SLOW_S
            waiting.append(self._submit(inputs))
            while len(waiting) >= most or (slow and waiting and waiting[0].done()):
                yield waiting.popleft().result()

    def flush(self) -> None:
        """Wait for all that is under way, then let stages make what they wrote visible."""
        self._host.wait_idle()
        for stage in self._served.stages:
            if isinstance(stage, BatchStage) and stage.flush is not None:
                stage.flush()

    def stats(self) -> dict[str, BatcherStats]:
        """Batches so far, by stage."""
        return self._engine.stats()

    def close(self) -> None:
        """Stop the threads; what is under way ends in ``unavailable``."""
        self._host.stop.set()
        self._engine.stop()
        self._host.end(error_for(ErrorCode.UNAVAILABLE, "the pipeline was closed"))

    def _submit(self, inputs: dict[str, Any]) -> Future[Result]:
        future: Future[Result] = Future()
        number = str(next(self._numbers))
        now = time.monotonic()
        try:
            program = self._served.program(NAME, inputs)
            # There are no options in Python: whatever a pipeline takes is an argument.
            values = program.read_inputs(inputs, inputs)
        except RequestFailed as error:
            future.set_result(Result(error=error))
            return future
        except Exception as unforeseen:  # noqa: BLE001  (the code of a field or a choice)
            future.set_result(Result(error=incident(unforeseen, ErrorCode.INTERNAL, number)))
            return future
        request = Request(number, NAME, dict(inputs))
        work = Work(
            request,
            program,
            future,
            enqueued_at=now,
            deadline=now + DEADLINE_S,
            lane=Lane.INTERACTIVE,
            values=values,
        )
        self._host.add(work)
        self._host.finished(self._engine.submit([work], now))
        return future


class _LocalHost:
    """The engine's ``Host`` and ``Gate`` where the caller is in this process."""

    def __init__(self, observer: Observer | None) -> None:
        self.hooks = Hooks()
        self.observer = observer
        self.stop = threading.Event()
        self._changed = threading.Condition()
        self._open: set[Work] = set()
        self._broken: RequestFailed | None = None

    def add(self, work: Work) -> None:
        """One more is under way.

        Raises:
            RequestFailed: ``internal``, the engine has broken down; ``unavailable``, it was closed.
        """
        with self._changed:
            if self._broken is not None:
                raise self._broken
            self._open.add(work)

    def wait_idle(self) -> None:
        """Block until nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def end(self, error: RequestFailed) -> None:
        """Nothing more will come."""
        with self._changed:
            self._broken, left = error, list(self._open)
        self.failed([(work, error) for work in left if work.claim()])

    # Gate ---------------------------------------------------------------------------------------------------------

    def wanted(self, works: Sequence[Work]) -> list[Work]:
        """Those whose caller has not cancelled them."""
        gone = [work for work in works if work.entry.cancelled()]
        for work in gone:
            work.claim()
        self._done(gone)
        return [work for work in works if not work.over]

    def owned(self, works: Sequence[Work]) -> list[Work]:
        """All of them: nobody else could have them."""
        return list(works)

    # Host ---------------------------------------------------------------------------------------------------------

    def gate(self, _name: str) -> _LocalHost:
        """Itself."""
        return self

    def left_s(self, work: Work) -> float:
        """Seconds until its deadline."""
        return work.deadline - time.monotonic()

    def late(self, work: Work) -> RequestFailed | None:
        """Nobody is late here, but nobody may wait for it any more."""
        return error_for(ErrorCode.CANCELLED) if work.entry.cancelled() else None

    def failed(self, failures: Sequence[tuple[Work, RequestFailed]]) -> None:
        """Give each caller its error."""
        # Copies: other steps of the same request may still be under way, and write theirs.
        self._answer([(work, Result(None, error, dict(work.notes), dict(work.timing))) for work, error in failures])

    def finished(self, finished: Sequence[tuple[Work, list[tuple[Any, ...]]]]) -> None:
        """Give each caller its rows."""
        self._answer([(work, Result(_table(work, rows), None, work.notes, work.timing)) for work, rows in finished])

    def _answer(self, results: list[tuple[Work, Result]]) -> None:
        for work, result in results:
            if work.entry.set_running_or_notify_cancel():
                work.entry.set_result(result)
        self._done([work for work, _ in results])

    def _done(self, works: list[Work]) -> None:
        if works:
            with self._changed:
                self._open.difference_update(works)
                if not self._open:
                    self._changed.notify_all()

    def to_store(self, works: Iterable[Work]) -> None:
        """Nothing is counted here."""

    def calling(self, who: object, *, begins: bool) -> None:
        """Nobody watches but the stage's own timeout."""

    def crashed(self, thread: str) -> None:
        """A fault of ours: everybody gets it, and nobody waits for ever."""
        error = sys.exception() or RuntimeError(thread)
        self.end(incident(error, ErrorCode.INTERNAL, thread))

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether it is the device's lack of memory and no item's fault."""
        from clipfleet.models.errors import OutOfMemory  # noqa: PLC0415

        return isinstance(error, OutOfMemory | MemoryError)


def _table(work: Work, rows: list[tuple[Any, ...]]) -> Table:
    columns = work.program.outputs
    if len(rows) == 1 and any(value is OMIT for value in rows[0]):
        kept = [place for place, value in enumerate(rows[0]) if value is not OMIT]
        return Table(tuple(columns[place] for place in kept), [tuple(rows[0][place] for place in kept)])
    return Table(columns, [tuple(None if value is OMIT else value for value in row) for row in rows])
