"""An event loop whose clock stands still unless somebody waits: hours of sleep take no time, and none is ever late."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Selector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("this loop waits for something that nobody will ever do")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """``asyncio.Runner(loop_factory=VirtualLoop)``; ``busy`` is work that blocks the loop."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def busy(self, seconds: float) -> None:
        """Hold the loop up for so long."""
        self._virtual.now += seconds
