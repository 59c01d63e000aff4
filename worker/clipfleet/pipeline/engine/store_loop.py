"""The threads that ask the store. It may be away for minutes: works wait, leases are kept, deadlines hold."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from clipfleet.batching import Closed
from clipfleet.pipeline.engine.batch_loop import BatchLoop, works_of
from clipfleet.pipeline.engine.incident import incident
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.work import Task

__all__ = ["StoreLoop"]

log = logging.getLogger(__name__)

IDLE_AFTER_S = 3.0
LOOK_AGAIN_S = 1.0  # while the store is away, at least this often what has come since is looked at
# A verdict must reach its caller before the caller gives up at the same deadline.
ANSWER_BEFORE_S = 0.25


class StoreLoop(BatchLoop):
    """Runs the stages of one store resource; arguments as for ``BatchLoop``.

    While the store is away the loop holds what it took, adds what has come since to the next attempt, and ends each
    work at its deadline with ``store_failed``.
    """

    troubled = False

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
                batch.done(self._insist(name, batch.items))

    def _rest(self) -> None:
        """Use the idle moment; whatever fails now is found out by the next who needs it."""
        for stage in self._stages.values():
            if stage.idle is not None:
                try:
                    stage.idle()
                except Exception as error:  # noqa: BLE001  (nobody waits for it)
                    log.debug("%s: idle work failed: %s", self.name, error)

    def _insist(self, name: str, tasks: list[Task]) -> float | None:
        """Ask until it is done; the seconds that it took, if it was asked once and for all of them."""
        from clipfleet.store import StoreUnavailable, retry_delay  # noqa: PLC0415  (there is a store stage: loaded)

        attempt, whole = 0, len(tasks)
        while tasks and not self._host.stop.is_set():
            works = self._in_time([work for work in works_of(tasks) if not work.over])
            tasks = self._kept(tasks, self._gate.owned(works))
            if not tasks:
                break
            began = time.monotonic()
            try:
                values = self._ask(name, tasks)
            except StoreUnavailable as error:
                self.troubled = True
                delay = retry_delay(error, attempt)
                attempt += 1
                self._host.stop.wait(self._patient_for(tasks, delay or LOOK_AGAIN_S))
                tasks = [*tasks, *self._group[name].drain()]
            else:
                took = time.monotonic() - began
                self.troubled = False
                self._advance(tasks, values)
                return took if attempt == 0 and len(tasks) == whole else None
        return None

    def _patient_for(self, tasks: list[Task], delay_s: float) -> float:
        """Until the next attempt or the first deadline."""
        first = min(self._host.left_s(task.work) for task in tasks) - ANSWER_BEFORE_S
        return max(0.0, min(LOOK_AGAIN_S, delay_s, first))

    def _ask(self, name: str, tasks: list[Task]) -> Sequence[Any]:
        from clipfleet.store import StoreUnavailable  # noqa: PLC0415

        hooks, works = self._host.hooks, [task.work for task in tasks]
        try:
            hooks.before_store(name, works)
            values = self._call(self._stages[name], tasks)
            if len(values) != len(tasks):
                raise error_for(
                    ErrorCode.STORE_FAILED, f"{counted(len(values), 'output')} for {counted(len(tasks), 'input')}"
                )
            for task in tasks:
                task.lap("store")
            hooks.after_store(name, works)
        except StoreUnavailable:
            raise
        except RequestFailed as error:
            return [error] * len(tasks)
        except Exception as unforeseen:  # noqa: BLE001  (foreign code; the row may have been written)
            return [incident(unforeseen, ErrorCode.STORE_FAILED, work.request.id, name) for work in works]
        return values

    def _in_time(self, works: Sequence[Any]) -> list[Any]:
        late = {work for work in works if self._host.left_s(work) <= ANSWER_BEFORE_S}
        verdicts = [(work, error_for(ErrorCode.STORE_FAILED, request_id=work.request.id)) for work in late]
        self._host.failed([one for one in verdicts if one[0].claim()])
        return [work for work in works if work not in late]
