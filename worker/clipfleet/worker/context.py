"""What the parts of one worker process share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    """Shared by intake, pool, device and store threads.

    Attributes:
        ledger: what is held.
        settler: where outcomes go.
        clock: the server's time.
        hooks: see ``clipfleet.worker.hooks``.
        connect: a stream over a new connection, for a thread of its own.
        calling: told when a model call begins (True) and ends (False): one that never ends must be noticed.
        is_out_of_memory: tells the device's lack of memory from other errors.
        stop: set when the process is stopping; cuts every wait short.
    """

    ledger: Ledger
    settler: Settler
    clock: ServerClock
    hooks: Hooks
    connect: Callable[[], QueueStream]
    calling: Callable[[bool], None]
    is_out_of_memory: Callable[[Exception], bool]
    stop: threading.Event = field(default_factory=threading.Event)

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
        works = [work for work in works if work.entry.stream_id in self.ledger]
        stale = self.ledger.stale([work.entry for work in works])
        if not stale:
            return works
        held: dict[str, list[str]] = {}
        for entry in stale:
            held.setdefault(entry.lane, []).append(entry.stream_id)
        lost = stream.renew(held)
        self.ledger.forget(lost)
        return [work for work in works if work.entry.stream_id not in lost]
