"""``map`` for asyncio: one task feeds requests in as there is room, the caller takes results out."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from clipfleet.producer.asked import Answer, Asked
from clipfleet.producer.core.window import Entry, Window, failure_of
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from clipfleet.producer.aio.job import AsyncJob
    from clipfleet.producer.requests import NewRequest
    from clipfleet.schemas.result import Result

__all__ = ["Sink", "Stream"]

# For how long a source is read before others have their turn.
_SOON_S: Final = 0.01

Sink: TypeAlias = "Callable[[AsyncJob], None]"


async def _beside(source: Iterator[NewRequest]) -> AsyncIterator[NewRequest]:
    """A source that blocks, asked in a thread of its own."""
    loop, answers = asyncio.get_running_loop(), asyncio.Queue[Answer]()

    def tell(answer: Answer) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it
            loop.call_soon_threadsafe(answers.put_nowait, answer)

    asked = Asked(source, tell)
    try:
        while True:
            asked.ask()
            if (request := asked.answered(await answers.get())) is None:
                return
            yield request
    finally:
        asked.leave()


class Stream:
    """The two halves of a map: one feeds requests in as there is room, one takes results out."""

    def __init__(
        self,
        requests: Iterable[NewRequest] | AsyncIterable[NewRequest],
        window: Window,
        send: Callable[[NewRequest, Sink], AsyncJob],
        *,
        beside: bool = False,
    ) -> None:
        self._window = window
        self._send = send
        self._done: deque[AsyncJob] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        if beside and not isinstance(requests, AsyncIterable):
            requests = _beside(iter(requests))
        self._feeder = asyncio.get_running_loop().create_task(self._feed(requests))
        self._feeder.add_done_callback(lambda _: self._news.set())

    async def next(self) -> list[tuple[NewRequest, Result]]:
        """The next items; none at the end. Raises what the source raised, after all that came before it."""
        window = self._window
        while True:
            if self._done:
                now = time.monotonic()
                while self._done:
                    job = self._done.popleft()
                    if job.entry is not None and job.ending is not None:
                        window.ended(job.entry, job.ending, now)
            if window.room:
                self._room.set()
            if items := window.take():
                return items
            if self._feeder.done() and window.empty:
                self._feeder.result()
                return []
            for entry in window.resend(time.monotonic()):
                await self._start_slowly(entry)
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
                if not self._window.room:
                    await self._has_room()
                await self._start_slowly(self._window.add(request))
        else:
            began = time.monotonic()
            for request in requests:
                if not self._window.room:
                    await self._has_room()
                elif time.monotonic() - began > _SOON_S:
                    await asyncio.sleep(0)  # a source that takes its time: results and others have their turn
                    began = time.monotonic()
                entry = self._window.add(request)
                if request.reads_file:
                    await self._start_slowly(entry)
                else:
                    self._start(entry, request)

    async def _has_room(self) -> None:
        while not self._window.room:
            self._room.clear()
            await self._room.wait()

    async def _start_slowly(self, entry: Entry) -> None:
        request = entry.request
        try:
            if request.reads_file:
                request = await asyncio.to_thread(request.loaded)
        except (RequestFailed, OSError) as error:
            self._failed(entry, error)
        else:
            self._start(entry, request)

    def _start(self, entry: Entry, request: NewRequest) -> None:
        try:
            job = self._send(request, self._arrived)
        except RequestFailed as error:
            self._failed(entry, error)
        else:
            job.entry = entry
            entry.job = job

    def _failed(self, entry: Entry, error: RequestFailed | OSError) -> None:
        self._window.ended(entry, failure_of(entry.request, error), time.monotonic())
        self._news.set()

    def _arrived(self, job: AsyncJob) -> None:
        self._done.append(job)
        self._news.set()
