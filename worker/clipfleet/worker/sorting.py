"""What becomes of an entry that was read: a work to run, or how it ends without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.batching import Lane as Priority
from clipfleet.pipeline.engine import incident
from clipfleet.pipeline.work import Work
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.limits import DEAD_MAX_INPUT_BYTES
from clipfleet.schemas.text import counted
from clipfleet.worker.settler import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.engine import Engine
    from clipfleet.worker.clock import ServerClock
    from clipfleet.worker.config import WorkerConfig
    from clipfleet.worker.entry import Entry

__all__ = ["Sorting"]

INTERACTIVE, BULK = Priority.INTERACTIVE, Priority.BULK


class Sorting:
    """Sorts out what was read.

    Args:
        config: the worker's.
        clock: the server's time, since deadlines are in it.
        engine: the works are for.
    """

    def __init__(self, config: WorkerConfig, clock: ServerClock, engine: Engine) -> None:
        self._most_deliveries = config.max_deliveries
        self._most_delay_ms = config.most_delay_ms
        self._bulk = config.keys.lanes[1]
        self._clock = clock
        self._engine = engine
        self._served = engine.served

    def sort(self, entries: Sequence[Entry], cancelled: Sequence[bool]) -> tuple[list[Work], list[Outcome]]:
        """The works, and the outcomes of the others.

        Args:
            entries: they are held.
            cancelled: which of them are not wanted any more.
        """
        works: list[Work] = []
        outcomes: list[Outcome] = []
        server_ms, most, plan = self._clock.now_ms(), self._most_deliveries, self._plan
        for entry, unwanted in zip(entries, cancelled, strict=True):
            found: Work | Outcome | None = None
            if unwanted or entry.invalid is not None or entry.deliveries > most or server_ms >= entry.deadline_ms:
                found = self._verdict(entry, server_ms, unwanted=unwanted)
            if found is None:
                found = plan(entry, server_ms)
            if type(found) is Work:
                works.append(found)
            elif type(found) is Outcome:
                outcomes.append(found)
        return works, outcomes

    def _verdict(self, entry: Entry, server_ms: float, *, unwanted: bool) -> Outcome | None:
        """How an entry ends without being run, or None."""
        if entry.deliveries > self._most_deliveries:
            text = f"{ErrorCode.POISONED.meaning} ({counted(entry.deliveries - 1, 'time')})"
            return Outcome(entry, error_for(ErrorCode.POISONED, text, request_id=entry.id), bury=True)
        if entry.invalid is not None:
            return Outcome(entry, entry.invalid, bury=True)
        if unwanted:
            return Outcome(entry, error_for(ErrorCode.CANCELLED, request_id=entry.id))
        if server_ms >= entry.deadline_ms:
            # What was parked for an absent store did not simply come too late.
            engine, request = self._engine, entry.request
            stored = engine.store_troubled and request is not None and engine.served.uses_store(request.pipeline)
            return Outcome(entry, error_for(ErrorCode.STORE_FAILED if stored else ErrorCode.EXPIRED))
        return None

    def _plan(self, entry: Entry, server_ms: float) -> Work | Outcome:
        """What is to be run for an entry, or why nothing can be."""
        if len(entry.payload) > DEAD_MAX_INPUT_BYTES:
            entry.payload = b""  # needed for dead letters alone, also of what cannot be answered
        request = entry.request
        assert request is not None  # noqa: S101  (an entry without a request has a verdict)
        try:
            program = self._served.program(request.pipeline, request.inputs)
            values = program.read_inputs(request.inputs, request.options)
        except RequestFailed as error:
            return Outcome(entry, error)
        except Exception as unforeseen:  # noqa: BLE001  (a pipeline's code on a stranger's inputs)
            return Outcome(entry, incident(unforeseen, ErrorCode.INTERNAL, entry.id))
        # Its age counts from when it was enqueued, at most max_delay ago, since older is no more overdue.
        age_ms = min(max(server_ms - entry.enqueued_ms, 0.0), self._most_delay_ms)
        return Work(
            request,
            program,
            entry,
            enqueued_at=entry.read_at - age_ms / 1000.0,
            deadline=self._clock.monotonic(entry.deadline_ms),
            lane=BULK if entry.lane == self._bulk else INTERACTIVE,
            values=values,
        )
