"""The threads that ask the store. It may be away for minutes: works wait, leases are kept, deadlines hold."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from clipfleet.batching import Closed
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.worker.connection import REFUSED
from clipfleet.worker.incident import incident
from clipfleet.worker.patience import Patience
from clipfleet.worker.settler import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clipfleet.batching import BatcherGroup
    from clipfleet.pipeline.stage import BatchStage
    from clipfleet.pipeline.work import Work
    from clipfleet.worker.context import Context

__all__ = ["StoreLoop"]

log = logging.getLogger(__name__)

IDLE_AFTER_S = 3.0
LOOK_AGAIN_S = 1.0  # while the store is away, at least this often what has come since is looked at
# A verdict must reach its caller before the caller gives up at the same deadline.
ANSWER_BEFORE_S = 0.25


class StoreLoop:
    """Runs the stages of one store resource; arguments as for ``DeviceLoop``.

    While the store is away the loop holds what it took, adds what has come since to the next attempt, and ends each
    work at its deadline with ``store_failed``.
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
        self.troubled = False
        self._group = group
        self._stages = stages
        self._context = context
        self._advance = advance
        self._stream = context.connect()
        self._patience = Patience(f"{name} leases", context.stop)

    def run(self) -> None:
        """The thread's loop; ends when the group is closed, leaving undone what waits for an absent store."""
        while True:
            try:
                taken = self._group.take(timeout=IDLE_AFTER_S)
            except Closed:
                return
            if taken is None:
                self._rest()
            else:
                name, batch = taken
                self._insist(name, batch.items)
                batch.done()

    def _rest(self) -> None:
        """Use the idle moment; whatever fails now is found out by the next who needs it."""
        for stage in self._stages.values():
            if stage.idle is not None:
                try:
                    stage.idle()
                except Exception as error:  # noqa: BLE001  (nobody waits for it)
                    log.debug("%s: idle work failed: %s", self.name, error)

    def _insist(self, name: str, works: list[Work]) -> None:
        from clipfleet.store import StoreUnavailable, retry_delay  # noqa: PLC0415  (there is a store stage: loaded)

        attempt = 0
        while works and not self._context.stop.is_set():
            works = self._in_time(works)
            try:
                works = self._context.owned(self._stream, works)
                if not works:
                    break
                values = self._call(name, works)
            except StoreUnavailable as error:
                self.troubled = True
                delay = retry_delay(error, attempt)
                attempt += 1
                self._context.stop.wait(self._patient_for(works, delay or LOOK_AGAIN_S))
                works += self._group[name].drain()
            except REFUSED as error:
                self._patience.trouble(error)
            else:
                self.troubled = False
                self._patience.fine()
                self._advance(works, values)
                return

    def _patient_for(self, works: list[Work], delay_s: float) -> float:
        """Until the next attempt or the first deadline."""
        first = min(self._context.left_s(work) for work in works) - ANSWER_BEFORE_S
        return max(0.0, min(LOOK_AGAIN_S, delay_s, first))

    def _call(self, name: str, works: list[Work]) -> Sequence[Any]:
        from clipfleet.store import StoreUnavailable  # noqa: PLC0415

        hooks = self._context.hooks
        hooks.before_store(name, works)
        try:
            values = self._stages[name].run(works)
        except (StoreUnavailable, *REFUSED):
            raise
        except RequestFailed as error:
            return [error] * len(works)
        except Exception as unforeseen:  # noqa: BLE001  (foreign code; the row may have been written)
            return [incident(unforeseen, ErrorCode.STORE_FAILED, work.request.id) for work in works]
        for work in works:
            work.lap("store")
        hooks.after_store(name, works)
        return values

    def _in_time(self, works: list[Work]) -> list[Work]:
        late: list[Outcome] = []
        left: list[Work] = []
        for work in works:
            if self._context.left_s(work) > ANSWER_BEFORE_S:
                left.append(work)
            else:
                late.append(Outcome(work.entry, error_for(ErrorCode.STORE_FAILED, request_id=work.request.id)))
        self._context.settler.put(late)
        return left
