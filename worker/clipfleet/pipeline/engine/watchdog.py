"""Calls that never end: their items fail, their thread is given up, and another one takes its place.

A thread cannot be killed. It goes on holding whatever it hangs in, which is why there is a limit to how many are
given up: a worker process is then ended, and its supervisor starts a new one.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from clipfleet.pipeline.engine.host import Host
    from clipfleet.pipeline.engine.leash import Call, Leash
    from clipfleet.pipeline.work import Task

__all__ = ["GiveUp", "Watch", "Watchdog", "Watched"]

log = logging.getLogger(__name__)
MOST_ABANDONED = 32


class GiveUp(RuntimeError):
    """Too many threads hang, or one that all need."""


class Watched(Protocol):
    """A thread's loop that can be given up."""

    name: str
    leash: Leash

    def again(self) -> Watched:
        """Another one in its place."""
        ...

    def release(self, tasks: Sequence[Task]) -> None:
        """Give back what the hung call held of the engine's; its tasks have their verdict."""
        ...

    def run(self) -> None:
        """Its loop."""
        ...


class Watch(NamedTuple):
    """What is watched.

    Attributes:
        loop: of a thread.
        most_s: that a call of it may take.
        alone: whether only the call's items end with it; else the process does, which nothing but that frees.
    """

    loop: Watched
    most_s: float
    alone: bool = True


class Watchdog:
    """Looks after loops whose calls have an end; a thread of its own.

    Args:
        loops: which, and how long.
        host: who runs the engine.
        start: starts the thread of a loop.
        stopped: set when all threads have ended: until then a call that hangs must not keep them from ending.
    """

    def __init__(
        self,
        loops: Sequence[Watch],
        host: Host,
        start: Callable[[Watched], None],
        stopped: threading.Event,
    ) -> None:
        self._loops = list(loops)
        self._host = host
        self._start = start
        self._stopped = stopped
        self._abandoned = 0
        self._every_s = min(watch.most_s for watch in loops) / 4

    def run(self) -> None:
        """The thread's loop; ends when all others have."""
        while not self._stopped.wait(self._every_s):
            for place, watch in enumerate(self._loops):
                call = watch.loop.leash.call
                if call is not None and time.monotonic() - call.began > watch.most_s:
                    if not watch.alone:
                        raise GiveUp(f"stage {call.tasks[0].step.name!r} took longer than {watch.most_s:g} s")
                    self._loops[place] = watch._replace(loop=self._replace(watch.loop, call, watch.most_s))

    def _replace(self, loop: Watched, call: Call, timeout: float) -> Watched:
        if not loop.leash.give_up(call):  # it ended in this very moment
            return loop
        tasks = call.tasks
        self._abandoned += 1
        if self._abandoned > MOST_ABANDONED:
            raise GiveUp(f"{self._abandoned} calls never ended; the last one by {loop.name}")
        fail = counted(len(tasks), "item fails", "items fail")
        log.error("%s: a call took longer than %g s; %s", loop.name, timeout, fail)
        verdict = f"stage {tasks[0].step.name!r} took longer than {timeout:g} s"
        failures = [(task.work, error_for(ErrorCode.MODEL_FAILED, verdict)) for task in tasks if task.work.claim()]
        self._host.failed(failures)
        loop.release(tasks)
        following = loop.again()
        self._start(following)
        loop.leash.ended.set()
        return following
