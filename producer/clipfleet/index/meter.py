"""What a run waits for: its own reading, the queue, the device or the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Meter", "slowest"]

_SPAN_S: Final = 5.0
_WEIGHT: Final = 0.02  # of one more answer: the last hundred or so count
_DEVICE: Final = ("queue", "prepare", "wait", "run")  # "queue" is that of a worker's own stages
# So much of its time spent in finding, reading and shrinking pictures means that nothing else holds a run back.
_BUSY: Final = 0.8
# Our own requests in flight stand in the queue for a few times as long as they are worked at. Longer is others' work.
_QUEUED: Final = 20.0


def slowest(busy: float, timing: Mapping[str, float]) -> str:
    """``producer``, ``queue``, ``device`` or ``store``; empty where nothing is known.

    Args:
        busy: the part of its time, 0 to 1, in which the producer made requests.
        timing: milliseconds by name as workers measured them; see the protocol.
    """
    if busy >= _BUSY:
        return "producer"
    device = sum(timing.get(name, 0.0) for name in _DEVICE)
    store = timing.get("store", 0.0)
    # Before a worker took it: its age when it was done, less what came after that.
    queue = max(0.0, timing.get("age", 0.0) - timing.get("total", 0.0))
    if not device + store + queue:
        return ""
    if queue > _QUEUED * (device + store):
        return "queue"
    return "store" if store > device else "device"


class Meter:
    """Measures one run.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timing: dict[str, float] = {}
        self._since = clock()
        self._made_s = 0.0
        self._busy = 0.0

    def made(self, seconds: float) -> None:
        """So long took it to find, read and shrink one picture."""
        self._made_s += seconds
        if (passed := self._clock() - self._since) >= _SPAN_S:
            self._busy, self._made_s, self._since = self._made_s / passed, 0.0, self._clock()

    def answered(self, timing: Mapping[str, float]) -> None:
        """One more answer, with the worker's timing."""
        for name, ms in timing.items():
            before = self._timing.get(name, ms)
            self._timing[name] = before + _WEIGHT * (ms - before)

    @property
    def bottleneck(self) -> str:
        """What the run waits for; see ``slowest``."""
        passed = self._clock() - self._since
        # Until the first span is over its beginning has to do.
        busy = self._busy or (self._made_s / passed if passed > 0 else 0.0)
        return slowest(busy, self._timing)
