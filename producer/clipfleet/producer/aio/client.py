"""The client for asyncio: the same core and engine, on the caller's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal

from clipfleet.producer.aio.job import AsyncJob
from clipfleet.producer.aio.runner import LoopRunner
from clipfleet.producer.aio.stream import Sink, Stream
from clipfleet.producer.calls import Calls
from clipfleet.producer.config import CLOSED, TO_INBOX, Config, Delivery, LaneName, ReplyKind, is_id, make_config
from clipfleet.producer.core.pending import Stage
from clipfleet.producer.core.window import Window
from clipfleet.producer.requests import NewRequest, checked, iterable, run
from clipfleet.schemas.keys import Lane
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE, DEFAULT_TTL_MS, MAX_UNANSWERED
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from clipfleet.producer.backend import AsyncBackend

__all__ = ["AsyncClient"]


class AsyncClient(Calls[Coroutine[Any, Any, Result]]):
    """A producer for asyncio; arguments as for ``Client``. One object for the whole process, used on one loop.

    Cancelling the await of a single call cancels its request; it never harms a connection.
    """

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        url: str = "redis://localhost:6379",
        *,
        queue: str = DEFAULT_QUEUE,
        prefix: str = DEFAULT_PREFIX,
        timeout: float | None = None,
        lane: LaneName = "interactive",
        wait_for_worker: bool = False,
        durability: Literal["replica"] | None = None,
        max_unanswered: int = MAX_UNANSWERED,
        io_timeout: float = 5.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._config: Final[Config] = make_config(
            url,
            queue=queue,
            prefix=prefix,
            timeout=timeout,
            lane=lane,
            wait_for_worker=wait_for_worker,
            durability=durability,
            max_unanswered=max_unanswered,
            io_timeout=io_timeout,
            ssl_context=ssl_context,
        )
        self._closed = False
        self._backend: AsyncBackend | None = None
        self._left_to_the_parent: list[AsyncBackend] = []

    def __repr__(self) -> str:
        return f"AsyncClient({self._config.address}, queue={self._config.keys.queue!r})"

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

    def call(self, request: NewRequest) -> Coroutine[Any, Any, Result]:
        """Carry out a request that was built by ``clipfleet.producer.requests``.

        Raises:
            RequestFailed: how it failed.
            OSError: its picture's file cannot be read.
            TypeError: it is no such request.
            RuntimeError: the client is closed.
        """
        return self._call(checked(request))

    async def _call(self, request: NewRequest) -> Result:
        job = self._send(await _loaded(request), self._config.lane, TO_INBOX)
        try:
            return await job.result()
        except asyncio.CancelledError:
            job.cancel()
            raise

    def submit(  # noqa: PLR0913 - options, all by name
        self,
        request: NewRequest | str,
        inputs: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        lane: LaneName | None = None,
        reply: ReplyKind = "inbox",
        reply_ttl_ms: int | None = None,
        id: str | None = None,  # noqa: A002 - the contract's name
        trace: str | None = None,
    ) -> AsyncJob:
        """As ``Client.submit``. A picture's file is read on the loop: pass bytes where that is too slow."""
        if isinstance(request, str):
            request = run(request, {} if inputs is None else inputs, options, timeout=timeout, id=id)
        delivery = Delivery(reply, reply_ttl_ms, trace)
        return self._send(checked(request).loaded(), Lane(lane) if lane else self._config.lane, delivery)

    def job(self, id: str) -> AsyncJob:  # noqa: A002 - the contract's name
        """As ``Client.job``."""
        if not is_id(id):
            raise ValueError("an id matches [A-Za-z0-9_-]{1,64}")
        now = time.monotonic()
        timeout = self._config.timeout_s or DEFAULT_TTL_MS / 1000
        job = AsyncJob(self._here(), id, self._config.lane, b"", now, now + timeout, inbox=False)
        job.stage = Stage.ACCEPTED
        return job

    async def map(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
    ) -> AsyncIterator[Result]:
        """As ``Client.map``; takes async iterables too."""
        stream = self.map_with_request(requests, max_in_flight=max_in_flight, ordered=ordered, lane=lane)
        try:
            async for _, result in stream:
                yield result
        finally:
            await stream.aclose()

    async def map_with_request(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
    ) -> AsyncGenerator[tuple[NewRequest, Result], None]:
        """As ``Client.map_with_request``; takes async iterables too."""
        to_lane = Lane(lane) if lane else self._config.lane

        async def send(request: NewRequest, sink: Sink) -> AsyncJob:
            return self._send(await _loaded(request), to_lane, TO_INBOX, sink)

        stream = Stream(iterable(requests), Window(max_in_flight, ordered=ordered), send)
        try:
            while (item := await stream.next()) is not None:
                yield item
        finally:
            stream.close()

    def _send(self, request: NewRequest, lane: Lane, delivery: Delivery, sink: Sink | None = None) -> AsyncJob:
        timeout = self._config.timeout_of(request)
        backend = self._here()
        self._config.check_room(backend.unanswered)
        request_id, payload = delivery.encode(request, backend.inbox_key)
        now = time.monotonic()
        job = AsyncJob(
            backend, request_id, lane, payload, now, now + timeout, inbox=delivery.reply == "inbox", sink=sink
        )
        backend.add(job)
        return job

    def _new_backend(self) -> AsyncBackend:
        return LoopRunner(self._config)

    def _here(self) -> AsyncBackend:
        backend = self._backend
        if backend is not None and backend.loop is asyncio.get_running_loop() and not backend.inherited:
            return backend
        if self._closed:
            raise RuntimeError(CLOSED)
        if backend is not None:
            if not backend.inherited:
                raise RuntimeError("an AsyncClient belongs to the event loop that it was first used on")
            self._left_to_the_parent.append(backend)  # finalising it here would break the parent's connections
        self._backend = self._new_backend()
        return self._backend


async def _loaded(request: NewRequest) -> NewRequest:
    return await asyncio.to_thread(request.loaded) if request.reads_file else request
