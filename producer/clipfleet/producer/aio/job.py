"""A request that is awaited."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from clipfleet.producer.core.pending import Pending, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self

    from clipfleet.producer.backend import AsyncBackend
    from clipfleet.producer.core.window import Entry
    from clipfleet.schemas.keys import Lane
    from clipfleet.schemas.result import Result

__all__ = ["AsyncJob"]

_DONE: Final = Stage.DONE


class AsyncJob(Pending):
    """A request on its way; ``await job`` gives its result.

    Cancelling the await leaves the request alone; ``cancel()`` ends it.

    Attributes:
        id: with it, ``client.job(id)`` finds the result of a request sent with ``reply="key"``.
    """

    __slots__ = ("_backend", "_client", "_sink", "_waiters", "entry")

    def __init__(  # noqa: PLR0913, PLR0917 - made for every request: gathering them in an object would be a cost of its own
        self,
        client: object,
        backend: AsyncBackend,
        request_id: str,
        lane: Lane,
        payload: bytes,
        submitted: float,
        deadline: float,
        inbox: bool,  # noqa: FBT001 - by name it would be a dict for every request
        sink: Callable[[AsyncJob], None] | None = None,
    ) -> None:
        Pending.__init__(self, request_id, lane, payload, submitted, deadline, inbox)  # quicker than by super()
        self._backend = backend
        self._client = client  # closed when nobody holds it any more; a request under way does
        self._sink = sink
        self._waiters: list[asyncio.Future[None]] | None = None
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
        try:
            return (await self.outcome(timeout)).unwrap()
        finally:
            del self  # see ``Result.unwrap``

    async def outcome(self, timeout: float | None = None) -> Result:  # noqa: ASYNC109 - part of the contract
        """As ``result``, but a failure is returned too, as a result that is not ``ok``."""
        if self.ending is None:
            if not self.inbox:
                self._backend.look_for(self)
            if self.found and timeout is None:
                timeout = max(0.0, self.deadline - time.monotonic())
            try:
                await self._wait(_DONE, timeout)
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
        await self._wait(Stage.ACCEPTED, timeout)
        if self.stage < Stage.ACCEPTED:
            raise TimeoutError(f"request {self.id} is not in the queue yet")
        if self.ending is not None and not self.ending.ok:
            try:
                self.ending.unwrap()
            finally:
                del self  # see ``Result.unwrap``
        return self

    def cancel(self) -> None:
        """End the request as ``cancelled``; a worker that has not started on it drops it."""
        self._backend.cancel(self)

    def notify(self) -> None:
        """See ``Pending``."""
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None
        if self._sink is not None and self.stage is _DONE:
            self._sink(self)
            self._sink = None

    async def _wait(self, stage: Stage, timeout: float | None) -> None:  # noqa: ASYNC109 - see above
        if timeout is None:
            await self._reached(stage)
            return
        try:
            async with asyncio.timeout(timeout):
                await self._reached(stage)
        except TimeoutError:
            return

    async def _reached(self, stage: Stage) -> None:
        while self.stage < stage:
            waiter = self._backend.loop.create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            await waiter
