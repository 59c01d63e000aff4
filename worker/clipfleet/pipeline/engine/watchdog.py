"""Calls that never end: their items fail, their thread is given up, and another one takes its place.

A thread cannot be killed. It goes on holding whatever it hangs in, which is why there is a limit to how many are
given up: a worker process is then ended, and its supervisor starts a new one.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from clipfleet.pipeline.engine.guard import start_thread
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.pipeline.engine.host import Host
    from clipfleet.pipeline.work import Task

__all__ = ["GiveUp", "Watchdog", "Watched"]

log = logging.getLogger(__name__)
MOST_ABANDONED = 32


class GiveUp(RuntimeError):
    """Too many threads hang."""


class Watched(Protocol):
    """A thread's loop that can be given up."""

    name: str
    call: tuple[float, Sequence[Task]] | None
    abandoned: bool

    def again(self) -> Watched:
        """Another one in its place."""
        ...

    def release(self) -> None:
        """Give back what the hung call held of the engine's."""
        ...

    def run(self) -> None:
        """Its loop."""
        ...


class Watchdog:
    """Looks after loops whose stage has a ``timeout``; a thread of its own.

    Args:
        loops: with the seconds that a call may take.
        host: who runs the engine.
        drop: takes tasks whose request has its verdict.
    """

    def __init__(
        self, loops: Sequence[tuple[Watched, float]], host: Host, drop: Callable[[Sequence[Task]], None]
    ) -> None:
        self._loops = list(loops)
        self._host = host
        self._drop = drop
        self._abandoned = 0
        self._every_s = min(timeout for _, timeout in loops) / 4

    def run(self) -> None:
        """The thread's loop; ends when the host stops."""
        while not self._host.stop.wait(self._every_s):
            for place, (loop, timeout) in enumerate(self._loops):
                call = loop.call
                if call is not None and time.monotonic() - call[0] > timeout:
                    self._loops[place] = (self._replace(loop, call[1], timeout), timeout)

    def _replace(self, loop: Watched, tasks: Sequence[Task], timeout: float) -> Watched:
        loop.abandoned = True
        if loop.call is None:  # it ended in this very moment
            loop.abandoned = False
            return loop
        self._abandoned += 1
        if self._abandoned > MOST_ABANDONED:
            raise GiveUp(f"{self._abandoned} calls never ended; the last one by {loop.name}")
        log.error("%s: a call took longer than %g s; its %d items fail", loop.name, timeout, len(tasks))
        verdict = f"stage {tasks[0].step.name!r} took longer than {timeout:g} s"
        failures = [(task.work, error_for(ErrorCode.MODEL_FAILED, verdict)) for task in tasks if task.work.claim()]
        self._host.failed(failures)
        self._drop(tasks)
        loop.release()
        following = loop.again()
        start_thread(following.name, following.run, self._host.crashed)
        return following
