"""The thread behind a ``Client``: one event loop, started with the first request, gone with ``close``.

Callers hand requests over and wait on a lock of their own; nothing else is shared. A fork leaves the child without
the thread but with copies of its sockets, so the child starts anew, under a name of its own, and never touches them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from clipfleet.producer.config import CLOSED
from clipfleet.producer.connection.engine import Engine
from clipfleet.producer.forks import Inheritable
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.producer.config import Config
    from clipfleet.producer.core.core import Core
    from clipfleet.producer.core.pending import Pending

__all__ = ["Runner"]

STOP_S: Final = 5.0


class Runner(Inheritable):
    """A core, its engine and their thread.

    Finalised in the child of a fork, its loop would take the parent's sockets off the shared epoll set.

    Raises:
        RuntimeError: from each method once it is stopped.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config
        producer = config.producer_name()
        self.core: Core = config.core(producer)
        self.inbox_key = config.keys.inbox(producer)
        self.lock = threading.Lock()
        self._incoming: deque[Pending] = deque()
        self._scheduled = False
        self._loop = asyncio.new_event_loop()
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="clipfleet-client", daemon=True)
        self._thread.start()

    @property
    def unanswered(self) -> int:
        """Requests in hand."""
        return len(self.core.unanswered) + len(self._incoming)

    def add(self, request: Pending) -> None:
        """Hand a request over."""
        self._incoming.append(request)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._call(self._take_in)
            except RuntimeError:
                self._refuse()
                raise

    def cancel(self, request: Pending) -> None:
        """End it as cancelled."""
        self._post(self.core.cancel, request)

    def look_for(self, request: Pending) -> None:
        """Somebody waits for a result on a key of its own."""
        self._post(lambda one: self.core.look_for(one, self._loop.time()), request)

    def look_no_more(self, request: Pending) -> None:
        """One of those waits no more."""
        with suppress(RuntimeError):  # closed meanwhile: it looks for nothing any more
            self._post(self.core.look_no_more, request)

    def stop(self) -> None:
        """Let admissions under way be decided, end the rest, end the thread."""
        if self.inherited or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._close()))
        if threading.current_thread() is not self._thread:
            self._thread.join(self._config.io_timeout_s + STOP_S)

    def _post(self, action: Callable[[Pending], None], request: Pending) -> None:
        """In the core's own thread, after all that was handed over before."""

        def act() -> None:
            self._take_in()
            action(request)
            self._pump()

        self._call(act)

    def _call(self, action: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # "Event loop is closed" tells nobody what to do
            raise RuntimeError(CLOSED) from None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())  # it looked up the host's name
            self._loop.close()
            self._refuse()

    def _refuse(self) -> None:
        """End what was handed over while it closed, also by who saw that somebody else was about to tell the loop."""
        self._scheduled = False  # before the queue is read, as in `_take_in`
        while self._incoming:
            with suppress(IndexError):  # another thread was quicker
                request = self._incoming.popleft()
                request.failed(error_for(ErrorCode.UNAVAILABLE, "the client was closed"))
                request.notify()

    async def _close(self) -> None:
        try:
            self._take_in()
            if self._engine is not None:
                await self._engine.close(self._config.io_timeout_s)
        finally:
            self._loop.stop()

    def _take_in(self) -> None:
        # Before the queue is read: what comes later schedules itself.
        self._scheduled = False
        self.core.take_in(self._incoming)
        self._pump()

    def _pump(self) -> None:
        if self._engine is None:
            config = self._config
            self._engine = Engine(self.core, config.address, io_timeout_s=config.io_timeout_s, block_s=config.block_s)
        self._engine.pump()
