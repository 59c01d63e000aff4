"""What is behind an ``AsyncClient``: a core and its engine on the caller's own loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from clipfleet.producer.connection.engine import Engine
from clipfleet.producer.forks import Inheritable

if TYPE_CHECKING:
    from clipfleet.producer.config import Config
    from clipfleet.producer.core.pending import Pending

__all__ = ["LoopRunner"]


class LoopRunner(Inheritable):
    """A core and its engine on one event loop of one process."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        producer = config.producer_name()
        self.loop = asyncio.get_running_loop()
        self.inbox_key = config.keys.inbox(producer)
        self._core = config.core(producer)
        self._grace_s = config.io_timeout_s
        self._engine = Engine(self._core, config.address, io_timeout_s=config.io_timeout_s, block_s=config.block_s)
        self._incoming: deque[Pending] = deque()
        self._scheduled = False

    @property
    def unanswered(self) -> int:
        """See ``Backend``."""
        return len(self._core.unanswered) + len(self._incoming)

    def add(self, request: Pending) -> None:
        """See ``Backend``."""
        self._incoming.append(request)
        self._pump_soon()

    def cancel(self, request: Pending) -> None:
        """See ``Backend``."""
        self._core.take_in(self._incoming)
        self._core.cancel(request)
        self._pump_soon()

    def look_for(self, request: Pending) -> None:
        """See ``Backend``."""
        self._core.look_for(request, self.loop.time())
        self._pump_soon()

    def look_no_more(self, request: Pending) -> None:
        """See ``Backend``."""
        self._core.look_no_more(request)

    async def close(self) -> None:
        """See ``AsyncBackend``."""
        self._core.take_in(self._incoming)
        await self._engine.close(self._grace_s)

    def _pump_soon(self) -> None:
        # Once a turn of the loop: what is submitted within one goes out in one call.
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        self._core.take_in(self._incoming)
        self._engine.pump()
