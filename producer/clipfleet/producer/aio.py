"""The client for asyncio: the same core and engine, on the caller's loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal

from clipfleet.producer.calls import Calls
from clipfleet.producer.config import Config, Delivery, LaneName, ReplyKind, make_config
from clipfleet.producer.engine import Engine
from clipfleet.producer.pending import Pending, Stage
from clipfleet.producer.requests import NewRequest, run
from clipfleet.producer.window import Entry, Window, failure_of
from clipfleet.schemas.errors import RequestFailed
from clipfleet.schemas.keys import ID, Lane
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE, DEFAULT_TTL_MS, MAX_UNANSWERED
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from clipfleet.producer.backend import AsyncBackend

__all__ = ["AsyncClient", "AsyncJob"]


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
            timeout: seconds to wait; None = until the request's deadline.

        Raises:
            RequestFailed: how it failed.
            TimeoutError: it is still under way after ``timeout``.
        """
        return (await self.outcome(timeout)).unwrap()

    async def outcome(self, timeout: float | None = None) -> Result:  # noqa: ASYNC109 - part of the contract
        """As ``result``, but a failure is returned too, as a result that is not ``ok``."""
        if self.ending is None:
            # A result in the inbox ends by the engine's clock; nobody watches a key's but its waiters.
            if not self.inbox:
                self._backend.look_for(self)
                timeout = self.deadline - time.monotonic() if timeout is None else timeout
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


class LoopBackend:
    """A core and its engine on one event loop of one process."""

    def __init__(self, config: Config) -> None:
        producer = config.producer_name()
        self.loop = asyncio.get_running_loop()
        self.inbox_key = config.keys.inbox(producer)
        self._pid = os.getpid()
        self._core = config.core(producer)
        self._grace_s = config.io_timeout_s
        self._engine = Engine(self._core, config.address, io_timeout_s=config.io_timeout_s, block_s=config.block_s)
        self._scheduled = False

    @property
    def unanswered(self) -> int:
        """See ``Backend``."""
        return len(self._core.unanswered)

    @property
    def inherited(self) -> bool:
        """See ``AsyncBackend``."""
        return self._pid != os.getpid()

    def add(self, request: Pending) -> None:
        """See ``Backend``."""
        self._core.add(request)
        self._pump_soon()

    def cancel(self, request: Pending) -> None:
        """See ``Backend``."""
        self._core.cancel(request)
        self._pump_soon()

    def look_for(self, request: Pending) -> None:
        """See ``Backend``."""
        self._core.look_for(request)
        self._pump_soon()

    def look_no_more(self, request: Pending) -> None:
        """See ``Backend``."""
        self._core.look_no_more(request)

    async def close(self) -> None:
        """See ``AsyncBackend``."""
        await self._engine.close(self._grace_s)

    def _pump_soon(self) -> None:
        # Once a turn of the loop: what is submitted within one goes out in one call.
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        self._engine.pump()


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
        """
        return self._call(request)

    async def _call(self, request: NewRequest) -> Result:
        job = self._send(await _loaded(request), self._config.lane, Delivery())
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
            request = run(request, inputs or {}, options, timeout=timeout, id=id)
        delivery = Delivery(reply, reply_ttl_ms, trace)
        return self._send(request.loaded(), Lane(lane) if lane else self._config.lane, delivery)

    def job(self, id: str) -> AsyncJob:  # noqa: A002 - the contract's name
        """As ``Client.job``."""
        if not ID.match(id):
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

        async def send(request: NewRequest, sink: Callable[[AsyncJob], None]) -> AsyncJob:
            return self._send(await _loaded(request), to_lane, Delivery(), sink)

        stream = _Stream(requests, Window(max_in_flight, ordered=ordered), send)
        try:
            while (item := await stream.next()) is not None:
                yield item
        finally:
            stream.close()

    def _send(
        self, request: NewRequest, lane: Lane, delivery: Delivery, sink: Callable[[AsyncJob], None] | None = None
    ) -> AsyncJob:
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
        return LoopBackend(self._config)

    def _here(self) -> AsyncBackend:
        backend = self._backend
        if backend is not None and backend.loop is asyncio.get_running_loop() and not backend.inherited:
            return backend
        if self._closed:
            raise RuntimeError("the client was closed")
        if backend is not None:
            if not backend.inherited:
                raise RuntimeError("an AsyncClient belongs to the event loop that it was first used on")
            self._left_to_the_parent.append(backend)  # finalising it here would break the parent's connections
        self._backend = self._new_backend()
        return self._backend


class _Stream:
    """The two halves of a map: one feeds requests in as there is room, one takes results out."""

    def __init__(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        window: Window,
        send: Callable[[NewRequest, Callable[[AsyncJob], None]], Awaitable[AsyncJob]],
    ) -> None:
        self._window = window
        self._send = send
        self._done: deque[AsyncJob] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._feeder = asyncio.get_running_loop().create_task(self._feed(requests))
        self._feeder.add_done_callback(lambda _: self._news.set())

    async def next(self) -> tuple[NewRequest, Result] | None:
        """The next item; None at the end. Raises what the source raised, after all that came before it."""
        while True:
            while self._done:
                job = self._done.popleft()
                if job.entry is not None and job.ending is not None:
                    self._window.ended(job.entry, job.ending, time.monotonic())
            if self._window.room:
                self._room.set()
            if (item := self._window.pop()) is not None:
                return item
            if self._feeder.done() and self._window.empty:
                self._feeder.result()
                return None
            for entry in self._window.resend(time.monotonic()):
                await self._start(entry)
            await self._wait()

    def close(self) -> None:
        """Stop feeding; cancel what is under way."""
        self._feeder.cancel()
        self._window.abandon()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._window.pause_s(time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    async def _feed(self, requests: Iterable[NewRequest] | AsyncIterable[NewRequest]) -> None:
        if isinstance(requests, AsyncIterable):
            async for request in requests:
                await self._feed_one(request)
        else:
            for request in requests:
                await self._feed_one(request)

    async def _feed_one(self, request: NewRequest) -> None:
        while not self._window.room:
            self._room.clear()
            await self._room.wait()
        await self._start(self._window.add(request))

    async def _start(self, entry: Entry) -> None:
        try:
            job = await self._send(entry.request, self._arrived)
        except (RequestFailed, OSError) as error:
            self._window.ended(entry, failure_of(entry.request, error), time.monotonic())
            self._news.set()
        else:
            job.entry = entry
            entry.cancel = job.cancel

    def _arrived(self, job: AsyncJob) -> None:
        self._done.append(job)
        self._news.set()


async def _loaded(request: NewRequest) -> NewRequest:
    return await asyncio.to_thread(request.loaded) if request.reads_file else request
