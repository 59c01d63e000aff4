"""What a thread asks Redis before it spends a device or the store on requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.worker.connection import REFUSED
from clipfleet.worker.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.work import Work
    from clipfleet.worker.context import Context

__all__ = ["LeaseGate"]


class LeaseGate:
    """A ``clipfleet.pipeline.engine.Gate`` over a connection of its own; waits for a Redis that is away.

    Args:
        context: what the process shares.
        name: of the thread, for the log.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._stream = context.connect()
        self._patience = Patience(f"checking leases for {name}", context.stop)

    def wanted(self, works: Sequence[Work]) -> list[Work]:
        """Those that are still ours, in time, and not cancelled; the others are settled."""
        context = self._context
        dropped: list[tuple[Work, RequestFailed]] = []
        wanted: list[Work] = []
        ours, cancelled = self._asked(works)
        server_ms = context.clock.now_ms()
        for work, unwanted in zip(ours, cancelled, strict=True):
            if not unwanted and work.entry.deadline_ms > server_ms:
                wanted.append(work)
            elif work.claim():
                code = ErrorCode.CANCELLED if unwanted else ErrorCode.EXPIRED
                dropped.append((work, error_for(code, request_id=work.entry.id)))
        context.failed(dropped)
        return wanted

    def owned(self, works: Sequence[Work]) -> list[Work]:
        """Those that are still ours."""
        while not self._context.stop.is_set():
            try:
                ours = self._context.owned(self._stream, works)
            except REFUSED as error:
                self._patience.trouble(error)
            else:
                self._patience.fine()
                return ours
        return []

    def _asked(self, works: Sequence[Work]) -> tuple[list[Work], list[bool]]:
        """Which works are ours, and which of them are cancelled."""
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
