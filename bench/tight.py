"""The limit of Python for batches in one process: queues with nothing about them.

No limit on what waits, no delay, no halving of a batch that raises, no close: what is left is one future or lock per
call, a queue, and a list of inputs for the function.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class InLoop:
    """asyncio alone: the function runs in the loop itself, which stands still meanwhile."""

    def __init__(self, function: Callable[[list[Any]], list[Any]], most: int) -> None:
        self._function = function
        self._most = most
        self._waiting: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._asked = False

    async def __call__(self, item: Any) -> Any:
        future = self._loop.create_future()
        self._waiting.append((item, future))
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._run)
        return await future

    def _run(self) -> None:
        waiting = self._waiting
        while waiting:
            batch = [waiting.popleft() for _ in range(min(self._most, len(waiting)))]
            for (_, future), output in zip(batch, self._function([item for item, _ in batch]), strict=True):
                future.set_result(output)
        self._asked = False


class AsyncioQueue:
    """``asyncio.Queue`` and a task that takes what is there; the function runs in the loop itself too."""

    def __init__(self, function: Callable[[list[Any]], list[Any]], most: int) -> None:
        self._function = function
        self._most = most
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._serve())

    async def __call__(self, item: Any) -> Any:
        future = self._loop.create_future()
        self._queue.put_nowait((item, future))
        return await future

    async def _serve(self) -> None:
        waiting = self._queue
        while True:
            batch = [await waiting.get()]
            while len(batch) < self._most and not waiting.empty():
                batch.append(waiting.get_nowait())
            for (_, future), output in zip(batch, self._function([item for item, _ in batch]), strict=True):
                future.set_result(output)

    def close(self) -> None:
        self._task.cancel()


class InThread:
    """From asyncio, with the function in a thread of its own, as a model that must not stop the loop runs."""

    def __init__(self, function: Callable[[list[Any]], list[Any]], most: int) -> None:
        self._function = function
        self._most = most
        self._queue: queue.SimpleQueue[tuple[Any, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    async def __call__(self, item: Any) -> Any:
        future = self._loop.create_future()
        self._queue.put((item, future))
        return await future

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            while len(batch) < self._most and not self._queue.empty():
                if (more := self._queue.get()) is None:
                    return
                batch.append(more)
            outputs = self._function([item for item, _ in batch])
            self._loop.call_soon_threadsafe(_answer, batch, outputs)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()


def _answer(batch: list[tuple[Any, asyncio.Future[Any]]], outputs: list[Any]) -> None:
    for (_, future), output in zip(batch, outputs, strict=True):
        future.set_result(output)


class FromThreads:
    """From threads: a lock for each call, one thread that runs the function."""

    def __init__(self, function: Callable[[list[Any]], list[Any]], most: int) -> None:
        self._function = function
        self._most = most
        self._queue: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def call(self, item: Any) -> Any:
        done = threading.Lock()
        done.acquire()
        ticket = [item, done]
        self._queue.put(ticket)
        done.acquire()
        return ticket[0]

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            while len(batch) < self._most and not self._queue.empty():
                if (more := self._queue.get()) is None:
                    return
                batch.append(more)
            for ticket, output in zip(batch, self._function([item for item, _ in batch]), strict=True):
                ticket[0] = output
                ticket[1].release()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
