"""Doubles of the clients, for the tests of services that use them: no Redis, no worker, the same code around both.

::

    from clipfleet.producer.testing import FakeClient, InMemoryFleet

    fleet = InMemoryFleet()
    fleet.on("embed_text", lambda request: {"vector": fleet.vector(request.inputs["text"].encode())})
    client = FakeClient(fleet)
    assert my_service(client).similar("a red heart") == []
    assert fleet.requests[0].inputs == {"text": "a red heart"}

Requests are encoded, decoded, answered, encoded and decoded again just as they are on the way to a worker and back.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from clipfleet.producer.aio.client import AsyncClient
from clipfleet.producer.core.pending import Pending, Stage
from clipfleet.producer.threads.client import Client
from clipfleet.schemas.errors import ErrorCode, QueueFull, RequestFailed, error_for
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.request import InvalidRequest, Request, decode_request
from clipfleet.schemas.result import Vector, decode_result, encode_failure, encode_success

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clipfleet.producer.backend import AsyncBackend, ThreadBackend

__all__ = ["FakeAsyncClient", "FakeClient", "Handler", "InMemoryFleet"]

Handler: TypeAlias = "Callable[[Request], Mapping[str, Any]]"


class InMemoryFleet:
    """A fleet in this process.

    ``echo``, ``embed_text`` and ``embed_image`` are answered from the start, with vectors that depend on the input
    alone; other pipelines are ``unknown_pipeline`` until ``on`` gives them a handler.

    Args:
        capacity: how many requests may wait while the fleet is paused.
        dimension: of the vectors.
        retry_after: what ``QueueFull`` says, in s.

    Attributes:
        requests: every request that was accepted, decoded, in order.
        alive: False = the clients hear that there is no worker.
    """

    def __init__(self, *, capacity: int = 10_000, dimension: int = 8, retry_after: float = 0.05) -> None:
        self.requests: list[Request] = []
        self.alive = True
        self._capacity = capacity
        self._dimension = dimension
        self._retry_after = retry_after
        self._paused = False
        self._waiting: list[Pending] = []
        self._results: dict[str, bytes] = {}
        self._handlers: dict[str, Handler] = {
            "echo": lambda request: {"data": request.inputs.get("data")},
            "embed_text": lambda request: {"vector": self.vector(str(request.inputs["text"]).encode())},
            "embed_image": lambda request: {"vector": self.vector(repr(request.inputs["image"]).encode())},
        }

    def on(self, pipeline: str, handler: Handler) -> None:
        """Answer ``pipeline`` with what ``handler`` returns, or fail with the ``RequestFailed`` that it raises."""
        self._handlers[pipeline] = handler

    def vector(self, seed: bytes) -> dict[str, Any]:
        """A unit vector that depends on ``seed`` alone, as a handler returns it."""
        digest = hashlib.shake_256(seed).digest(self._dimension)
        numbers = [byte - 127.5 for byte in digest]
        norm = sum(number * number for number in numbers) ** 0.5
        return Vector(struct.pack(f"<{self._dimension}f", *(number / norm for number in numbers))).to_wire()

    def pause(self) -> None:
        """Answer nothing: what comes now waits, and above ``capacity`` is refused."""
        self._paused = True

    def resume(self) -> None:
        """Answer what waits, and what comes."""
        self._paused = False
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._answer(request)

    def take(self, request: Pending) -> None:
        """A client's request; see ``Backend.add``."""
        if not self.alive:
            self._end(request, error_for(ErrorCode.UNAVAILABLE, "no worker on this queue"))
        elif self._paused and len(self._waiting) >= self._capacity:
            self._end(request, QueueFull(self._retry_after))
        else:
            request.stage = Stage.ACCEPTED
            request.notify()
            if self._paused:
                self._waiting.append(request)
            else:
                self._answer(request)

    def cancel(self, request: Pending) -> None:
        """See ``Backend.cancel``."""
        if request.stage is not Stage.DONE:
            if request in self._waiting:
                self._waiting.remove(request)
            self._end(request, error_for(ErrorCode.CANCELLED))

    def look_for(self, request: Pending) -> None:
        """See ``Backend.look_for``."""
        data = self._results.get(request.id)
        if data is not None and request.stage is not Stage.DONE:
            request.ended(decode_result(data))
            request.notify()

    def _answer(self, request: Pending) -> None:
        data = self._results[request.id] = self._run(request.payload)
        request.ended(decode_result(data))
        request.notify()

    def _run(self, payload: bytes) -> bytes:
        try:
            request, _ = decode_request(payload, _KEYS)
        except InvalidRequest as error:
            request_id = error.envelope.id if error.envelope else "unknown"
            return encode_failure(request_id, RequestFailed(error.code, str(error)))
        self.requests.append(request)
        handler = self._handlers.get(request.pipeline)
        try:
            if handler is None:
                raise error_for(ErrorCode.UNKNOWN_PIPELINE)
            return encode_success(request.id, handler(request), model="fake")
        except RequestFailed as error:
            return encode_failure(request.id, error)

    @staticmethod
    def _end(request: Pending, error: RequestFailed) -> None:
        request.failed(error)
        request.notify()


_KEYS = QueueKeys()


class _FleetBackend:
    """Between a client and a fleet."""

    inherited = False

    def __init__(self, fleet: InMemoryFleet) -> None:
        self._fleet = fleet
        self.lock = threading.Lock()
        self.unanswered = 0
        self.inbox_key = _KEYS.inbox("fake")
        self.add = fleet.take
        self.cancel = fleet.cancel
        self.look_for = fleet.look_for

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def look_no_more(self, request: Pending) -> None:
        """Nothing was begun."""

    def leave_to_parent(self) -> None:
        """Nothing is shared."""

    def stop(self) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """Nothing runs."""


class FakeClient(Client):
    """A ``Client`` whose requests an ``InMemoryFleet`` answers; arguments as for ``Client``, without the URL."""

    def __init__(self, fleet: InMemoryFleet | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.fleet = fleet or InMemoryFleet()

    def _new_backend(self) -> ThreadBackend:
        return _FleetBackend(self.fleet)


class FakeAsyncClient(AsyncClient):
    """An ``AsyncClient`` whose requests an ``InMemoryFleet`` answers."""

    def __init__(self, fleet: InMemoryFleet | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.fleet = fleet or InMemoryFleet()

    def _new_backend(self) -> AsyncBackend:
        return _FleetBackend(self.fleet)
