"""``map`` for asyncio: one task feeds requests in as there is room, the caller takes results out."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, TypeAlias

from clipfleet.producer.core.window import Entry, Window, failure_of
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from clipfleet.producer.aio.job import AsyncJob
    from clipfleet.producer.requests import NewRequest
    from clipfleet.schemas.result import Result

__all__ = ["Sink", "Stream"]

Sink: TypeAlias = "Callable[[AsyncJob], None]"


class Stream:
    """The two halves of a map: one feeds requests in as there is room, one takes results out."""

    def __init__(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        window: Window,
        send: Callable[[NewRequest, Sink], Awaitable[AsyncJob]],
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
