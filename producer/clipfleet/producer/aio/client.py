"""The client for asyncio: the same core and engine, on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Coroutine
from typing import TYPE_CHECKING, Any

from clipfleet.producer.aio.job import AsyncJob
from clipfleet.producer.aio.runner import LoopRunner
from clipfleet.producer.aio.stream import Sink, Stream
from clipfleet.producer.backend import AsyncBackend
from clipfleet.producer.config import CLOSED, TO_INBOX, LaneName
from clipfleet.producer.core.window import Window
from clipfleet.producer.face import Face
from clipfleet.producer.requests import NewRequest, iterable
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable
    from types import TracebackType
    from typing import Self

__all__ = ["AsyncClient"]


class AsyncClient(Face[Coroutine[Any, Any, Result], AsyncJob, AsyncBackend]):
    """A producer for asyncio; arguments as for ``Client``. One object for the whole process, used on one loop.

    Cancelling the await of a single call cancels its request; it never harms a connection.
    """

    _job = AsyncJob

    async def __aenter__(self) -> Self:
        if self._closed:
            raise RuntimeError(CLOSED)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait until what was submitted is in the queue, end what is unanswered as ``unavailable``, disconnect."""
        self._closed = True
        backend, self._backend = self._backend, None
        if backend is not None and not backend.inherited:
            await backend.close()

    async def _carry_out(self, request: NewRequest) -> Result:
        if request.reads_file:
            request = await asyncio.to_thread(request.loaded)
        job = self._send(request, self._config.lane, TO_INBOX)
        try:
            return await job.result()
        except asyncio.CancelledError:
            job.cancel()
            raise
        finally:
            del job  # see ``Result.unwrap``

    async def map(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
        source_waits: bool = False,
    ) -> AsyncIterator[Result]:
        """As ``Client.map``; takes async iterables too, for which ``source_waits`` changes nothing."""
        stream = self._stream(requests, Window(max_in_flight, ordered=ordered), lane, source_waits)
        try:
            while items := await stream.next():
                for _, result in items:
                    yield result
        finally:
            stream.close()

    async def map_with_request(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
        source_waits: bool = False,
    ) -> AsyncGenerator[tuple[NewRequest, Result], None]:
        """As ``Client.map_with_request``; takes async iterables too."""
        stream = self._stream(requests, Window(max_in_flight, ordered=ordered), lane, source_waits)
        try:
            while items := await stream.next():
                for item in items:
                    yield item
        finally:
            stream.close()

    def _stream(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        window: Window,
        lane: LaneName | None,
        beside: bool,  # noqa: FBT001 - ``source_waits``
    ) -> Stream:
        to_lane = self._lane(lane)

        def send(request: NewRequest, sink: Sink) -> AsyncJob:
            return self._send(request, to_lane, TO_INBOX, sink)

        return Stream(iterable(requests), window, send, beside=beside)

    def _new_backend(self) -> AsyncBackend:
        return LoopRunner(self._config)

    def _running(self) -> AsyncBackend:
        backend = self._backend
        if backend is not None and backend.loop is asyncio.get_running_loop() and not backend.inherited:
            return backend
        if self._closed:
            raise RuntimeError(CLOSED)
        if backend is not None:
            if not backend.inherited:
                raise RuntimeError("an AsyncClient belongs to the event loop that it was first used on")
            backend.leave_to_parent()
        self._backend = self._new_backend()
        return self._backend
