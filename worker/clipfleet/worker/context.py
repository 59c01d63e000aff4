"""What the parts of one worker process share."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clipfleet.pipeline.engine.guard import end_process
from clipfleet.pipeline.foreign import said_of
from clipfleet.pipeline.wire import outputs_of, to_wire
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.worker.gate import LeaseGate
from clipfleet.worker.settler import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clipfleet.pipeline.engine.host import Finished
    from clipfleet.pipeline.observer import Observer
    from clipfleet.pipeline.work import Work
    from clipfleet.worker.clock import ServerClock
    from clipfleet.worker.entry import Entry
    from clipfleet.worker.hooks import Hooks
    from clipfleet.worker.ledger import Ledger
    from clipfleet.worker.settler import Settler
    from clipfleet.worker.stream import QueueStream

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """Shared by intake, pool, device and store threads; the engine's ``Host``.

    Attributes:
        ledger: what is held.
        settler: where outcomes go.
        clock: the server's time.
        hooks: see ``clipfleet.worker.hooks``.
        connect: a stream over a new connection, for a thread of its own.
        report_call: told whose model call begins (True) or ends (False): one that never ends must be noticed.
        fingerprint: of the models, for results.
        observer: told of each call of a stage.
        others_idle: set while another worker of the queue has nothing to do, by what was last heard.
        stop: set when the process is stopping; cuts every wait short.
    """

    ledger: Ledger
    settler: Settler
    clock: ServerClock
    hooks: Hooks
    connect: Callable[[], QueueStream]
    report_call: Callable[[object, bool], None]
    fingerprint: str = ""
    observer: Observer | None = None
    others_idle: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)

    # The engine's host --------------------------------------------------------------------------------------------

    def gate(self, name: str) -> LeaseGate:
        """For a thread that spends a device or the store on works."""
        return LeaseGate(self, name)

    def failed(self, failures: Sequence[tuple[Work, RequestFailed]]) -> None:
        """Settle these with their errors."""
        self.settler.put([Outcome(work.entry, error=error) for work, error in failures])

    def finished(self, finished: Sequence[Finished]) -> None:
        """Settle these with their outputs."""
        self.settler.put(self.outcomes(finished))

    def outcomes(self, finished: Sequence[Finished]) -> list[Outcome]:
        """How these end."""
        now = time.monotonic()
        return [self._outcome(work, rows, now) for work, rows in finished]

    def _outcome(self, work: Work, rows: list[tuple[Any, ...]], now: float) -> Outcome:
        program = work.program
        work.timing["age"] = int((now - work.enqueued_at) * 1e6) / 1e3
        model = self.fingerprint if program.of_model else ""
        try:
            outputs, notes = outputs_of(program, rows), to_wire(work.notes) if work.notes else None
        except Exception as unfit:  # noqa: BLE001  (values of somebody's code: a list in itself, an array of objects)
            text = f"the outputs cannot be sent: {said_of(unfit)}"
            return Outcome(work.entry, error_for(ErrorCode.INTERNAL, text, request_id=work.request.id))
        return Outcome(work.entry, None, outputs, model, notes, work.timing)

    def to_store(self, works: Iterable[Work]) -> None:
        """They take no room on the device any more."""
        self.ledger.to_store([work.entry for work in works])

    def calling(self, who: object, *, begins: bool) -> None:
        """Let the supervisor know."""
        self.report_call(who, begins)

    def crashed(self, thread: str) -> None:
        """End the process."""
        end_process(thread)

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether it is the device's lack of memory and no item's fault."""
        from clipfleet.models.errors import OutOfMemory  # noqa: PLC0415

        return isinstance(error, OutOfMemory | MemoryError)

    # Leases and deadlines -----------------------------------------------------------------------------------------

    def left_s(self, work: Work) -> float:
        """Seconds until its deadline; negative after it."""
        entry: Entry = work.entry
        return (entry.deadline_ms - self.clock.now_ms()) / 1000.0

    def late(self, work: Work) -> RequestFailed | None:
        """The error of a work whose deadline has passed, else None."""
        return error_for(ErrorCode.EXPIRED, request_id=work.request.id) if self.left_s(work) <= 0 else None

    def owned(self, stream: QueueStream, works: Iterable[Work]) -> list[Work]:
        """The works that are still ours to run.

        After a pause (of this process, its supervisor or Redis) leases may have run out: then the owner is asked for,
        and what another worker took over is forgotten.

        Raises:
            LOST: Redis cannot be asked now.
        """
        works = [work for work in works if work.entry.place in self.ledger]
        stale = self.ledger.stale([work.entry for work in works])
        if not stale:
            return works
        held: dict[str, list[str]] = {}
        for entry in stale:
            held.setdefault(entry.lane, []).append(entry.stream_id)
        lost = stream.renew(held)
        self.ledger.forget(lost)
        return [work for work in works if work.entry.place not in lost]
