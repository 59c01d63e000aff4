"""The client for threads."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from clipfleet.producer.backend import ThreadBackend
from clipfleet.producer.config import CLOSED, TO_INBOX, LaneName
from clipfleet.producer.core.window import Window
from clipfleet.producer.face import Face
from clipfleet.producer.requests import NewRequest, iterable
from clipfleet.producer.threads.job import Job
from clipfleet.producer.threads.runner import Runner
from clipfleet.producer.threads.stream import stream, stream_beside
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

__all__ = ["Client"]


class Client(Face[Result, Job, ThreadBackend]):
    """A producer for threads: one object for the whole process, used by any number of them.

    All its requests share two connections (one for commands, one for the blocking read of results), made when there
    is something to say, made again when they break. Requests that come at the same time go out in one call.

    A closed client stays closed: each of its methods, and ``with``, is a RuntimeError that says so.
    """

    _job = Job

    def _prepare(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if self._closed:
            raise RuntimeError(CLOSED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait until what was submitted is in the queue, end what is unanswered as ``unavailable``, disconnect."""
        self._closed = True
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.stop()

    def _carry_out(self, request: NewRequest) -> Result:
        return self._send(request.loaded(), self._config.lane, TO_INBOX).result()

    def map(
        self,
        requests: Iterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
        source_waits: bool = False,
    ) -> Iterator[Result]:
        """Stream any number of requests through, ``max_in_flight`` at a time.

        Yields results in the order of the requests, or as they come (``ordered=False``), and never raises for an
        item: a failure is a result that is not ``ok`` and carries ``.error``. A full queue is waited for. Leaving the
        loop early cancels what is under way.

        ``requests`` is asked in the caller's thread, and what has come is given between two of its items. Where it
        waits for something of its own (messages, say), ``source_waits=True`` asks it in a thread of its own, and gives
        results meanwhile; that is slower where it does not.

        Raises:
            TypeError: for what is no iterable of requests.
            RuntimeError: the client is closed.
            Exception: what ``requests`` itself raised, once the results of all that it gave before have been given.
        """
        pairs = self.map_with_request(
            requests, max_in_flight=max_in_flight, ordered=ordered, lane=lane, source_waits=source_waits
        )
        return (result for _, result in pairs)

    def map_with_request(
        self,
        requests: Iterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
        source_waits: bool = False,
    ) -> Iterator[tuple[NewRequest, Result]]:
        """As ``map``, with the request (and its ``.tag``) that each result belongs to."""
        to_lane = self._lane(lane)

        def send(request: NewRequest, sink: Callable[[Job], None]) -> Job:
            return self._send(request.loaded(), to_lane, TO_INBOX, sink)

        streamed = stream_beside if source_waits else stream
        return streamed(iter(iterable(requests)), Window(max_in_flight, ordered=ordered), send)

    def _new_backend(self) -> ThreadBackend:
        return Runner(self._config)

    def _running(self) -> ThreadBackend:
        backend = self._backend
        if backend is not None and not backend.inherited:
            return backend
        if self._pid != os.getpid():  # a fork: the lock may have been held by a thread that is not here
            self._pid, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            if self._closed:
                raise RuntimeError(CLOSED)
            if self._backend is not None and self._backend.inherited:
                self._backend.leave_to_parent()
                self._backend = None
            if self._backend is None:
                self._backend = self._new_backend()
                weakref.finalize(self, self._backend.stop)
            return self._backend
