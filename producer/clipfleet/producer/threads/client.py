"""The client for threads."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal

from clipfleet.producer.calls import Calls
from clipfleet.producer.config import CLOSED, TO_INBOX, Config, Delivery, LaneName, ReplyKind, is_id, make_config
from clipfleet.producer.core.pending import Stage
from clipfleet.producer.core.window import Window
from clipfleet.producer.requests import NewRequest, checked, iterable, run
from clipfleet.producer.threads.job import Job
from clipfleet.producer.threads.runner import Runner
from clipfleet.producer.threads.stream import stream
from clipfleet.schemas.keys import Lane
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE, DEFAULT_TTL_MS, MAX_UNANSWERED
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator, Mapping
    from queue import SimpleQueue
    from types import TracebackType
    from typing import Self

    from clipfleet.producer.backend import ThreadBackend

__all__ = ["Client"]


class Client(Calls[Result]):
    """A producer for threads: one object for the whole process, used by any number of them.

    All its requests share two connections (one for commands, one for the blocking read of results), made when there
    is something to say, made again when they break. Requests that come at the same time go out in one call.

    Args:
        url: ``redis://[user:password@]host:port/db``, ``rediss://`` for TLS, ``unix://path``.
        queue: the queue's name.
        prefix: what all of its keys start with.
        timeout: seconds that a request may take, for the caller's wait and for the fleet; None = 60, and 600 for
            ``index_image``.
        lane: ``interactive`` where somebody waits, ``bulk`` where nobody does.
        wait_for_worker: put requests into the queue although no worker lives, and wait for Redis until the deadline.
        durability: ``replica`` counts a request as accepted only when a replica has it, so that a failover loses
            none.
        max_unanswered: above so many the next one is refused at once (``QueueFull``); at most 4,096.
        io_timeout: seconds of silence after which a connection is given up.
        ssl_context: how to speak TLS, where the URL's own options do not do.

    A closed client stays closed: each of its methods, and ``with``, is a RuntimeError that says so.

    Raises:
        TypeError: for a URL, a queue or a prefix that is no ``str``.
        ValueError: for settings that cannot be.
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
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._backend: ThreadBackend | None = None

    def __repr__(self) -> str:
        return f"Client({self._config.address}, queue={self._config.keys.queue!r})"

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

    def call(self, request: NewRequest) -> Result:
        """Carry out a request that was built by ``clipfleet.producer.requests``.

        Raises:
            RequestFailed: how it failed.
            OSError: its picture's file cannot be read.
            TypeError: it is no such request.
            RuntimeError: the client is closed.
        """
        return self._send(checked(request).loaded(), self._config.lane, TO_INBOX).result()

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
    ) -> Job:
        """Send a request and go on; returns before Redis has it (``job.accepted()`` waits for that).

        Args:
            request: a pipeline's name with ``inputs`` and ``options``, or a built request alone.
            inputs: the pipeline's inputs.
            options: the pipeline's options.
            timeout: seconds until the deadline.
            lane: None = the client's.
            reply: ``inbox``: the result comes to this client. ``key``: it stays under the id for ``reply_ttl_ms``,
                for ``client.job(id)`` in any process.
            reply_ttl_ms: 1,000 to 86,400,000; None = 10 minutes.
            id: ``[A-Za-z0-9_-]{1,64}``; None = a fresh one.
            trace: W3C traceparent.

        Raises:
            RequestFailed: ``bad_request`` for what cannot be sent, ``QueueFull`` at ``max_unanswered``.
            TypeError: it is no request, or its inputs are no mapping.
            RuntimeError: the client is closed.
        """
        if isinstance(request, str):
            request = run(request, {} if inputs is None else inputs, options, timeout=timeout, id=id)
        delivery = Delivery(reply, reply_ttl_ms, trace)
        return self._send(checked(request).loaded(), Lane(lane) if lane else self._config.lane, delivery)

    def job(self, id: str) -> Job:  # noqa: A002 - the contract's name
        """A request that was submitted elsewhere with ``reply="key"``.

        Its ``result()`` waits for the client's ``timeout`` unless told otherwise, then raises TimeoutError: whether
        there ever was such a request cannot be known.

        Raises:
            ValueError: for what is no id.
        """
        if not is_id(id):
            raise ValueError("an id matches [A-Za-z0-9_-]{1,64}")
        now = time.monotonic()
        timeout = self._config.timeout_s or DEFAULT_TTL_MS / 1000
        job = Job(self._running(), self, id, self._config.lane, b"", now, now + timeout, inbox=False)
        job.stage = Stage.ACCEPTED
        return job

    def map(
        self,
        requests: Iterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
    ) -> Iterator[Result]:
        """Stream any number of requests through, ``max_in_flight`` at a time.

        Yields results in the order of the requests, or as they come (``ordered=False``), and never raises for an
        item: a failure is a result that is not ``ok`` and carries ``.error``. A full queue is waited for. Leaving the
        loop early cancels what is under way.

        Raises:
            TypeError: for what is no iterable of requests.
            RuntimeError: the client is closed.
        """
        pairs = self.map_with_request(requests, max_in_flight=max_in_flight, ordered=ordered, lane=lane)
        return (result for _, result in pairs)

    def map_with_request(
        self,
        requests: Iterable[NewRequest],
        *,
        max_in_flight: int = 256,
        ordered: bool = True,
        lane: LaneName | None = None,
    ) -> Iterator[tuple[NewRequest, Result]]:
        """As ``map``, with the request (and its ``.tag``) that each result belongs to."""
        to_lane = Lane(lane) if lane else self._config.lane

        def send(request: NewRequest, sink: SimpleQueue[Job]) -> Job:
            return self._send(request.loaded(), to_lane, TO_INBOX, sink)

        return stream(iter(iterable(requests)), Window(max_in_flight, ordered=ordered), send)

    def _send(self, request: NewRequest, lane: Lane, delivery: Delivery, sink: SimpleQueue[Job] | None = None) -> Job:
        timeout = self._config.timeout_of(request)
        backend = self._running()
        self._config.check_room(backend.unanswered)
        request_id, payload = delivery.encode(request, backend.inbox_key)
        now = time.monotonic()
        job = Job(
            backend, self, request_id, lane, payload, now, now + timeout, inbox=delivery.reply == "inbox", sink=sink
        )
        backend.add(job)
        return job

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
