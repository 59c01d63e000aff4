"""A request that is awaited."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from clipfleet.producer.core.pending import Pending, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self

    from clipfleet.producer.backend import AsyncBackend
    from clipfleet.producer.core.window import Entry
    from clipfleet.schemas.result import Result

__all__ = ["AsyncJob"]


class AsyncJob(Pending):
    """A request on its way; ``await job`` gives its result.

    Cancelling the await leaves the request alone; ``cancel()`` ends it.

    Attributes:
        id: with it, ``client.job(id)`` finds the result of a request sent with ``reply="key"``.
    """

    __slots__ = ("_backend", "_sink", "_waiters", "entry")

    def __init__(
        self, backend: AsyncBackend, *args: Any, sink: Callable[[AsyncJob], None] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._backend = backend
        self._sink = sink
        self._waiters: list[asyncio.Future[None]] = []
        self.entry: Entry | None = None

    def __await__(self) -> Generator[Any, None, Result]:
        return self.result().__await__()

    def done(self) -> bool:
        """Whether the result is here."""
        return self.stage is Stage.DONE

    async def result(self, timeout: float | None = None) -> Result:  # noqa: ASYNC109 - part of the contract
        """The result.

        Args:
            timeout: seconds to wait; None = until it has ended, by its deadline at the latest. A request that was
                submitted elsewhere is waited for as long as this client's own would be.

        Raises:
            RequestFailed: how it failed.
            TimeoutError: it is still under way after ``timeout``.
        """
        return (await self.outcome(timeout)).unwrap()

    async def outcome(self, timeout: float | None = None) -> Result:  # noqa: ASYNC109 - part of the contract
        """As ``result``, but a failure is returned too, as a result that is not ``ok``."""
        if self.ending is None:
            if not self.inbox:
                self._backend.look_for(self)
            if self.found and timeout is None:
                timeout = max(0.0, self.deadline - time.monotonic())
            try:
                await self._wait(lambda: self.stage is Stage.DONE, timeout)
            finally:
                if not self.inbox and self.ending is None:
                    self._backend.look_no_more(self)
        if self.ending is None:
            raise TimeoutError(f"no result of request {self.id} yet")
        return self.ending

    async def accepted(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109 - part of the contract
        """Wait until the request is in the queue.

        Raises:
            RequestFailed: it has failed already: ``QueueFull``, ``Unavailable``, ...
            TimeoutError: that is not known after ``timeout``.
        """
        self.watched = True
        await self._wait(lambda: self.stage >= Stage.ACCEPTED, timeout)
        if self.stage < Stage.ACCEPTED:
            raise TimeoutError(f"request {self.id} is not in the queue yet")
        if self.ending is not None:
            self.ending.unwrap()
        return self

    def cancel(self) -> None:
        """End the request as ``cancelled``; a worker that has not started on it drops it."""
        self._backend.cancel(self)

    def notify(self) -> None:
        """See ``Pending``."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self.stage is Stage.DONE:
            sink, self._sink = self._sink, None
            if sink is not None:
                sink(self)

    async def _wait(self, is_over: Callable[[], bool], timeout: float | None) -> None:  # noqa: ASYNC109 - see above
        try:
            async with asyncio.timeout(timeout):
                while not is_over():
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            return
