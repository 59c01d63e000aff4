"""The client for threads."""

from __future__ import annotations

import os
import threading
import time
import weakref
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal

from clipfleet.producer.calls import Calls
from clipfleet.producer.config import Config, Delivery, LaneName, ReplyKind, make_config
from clipfleet.producer.pending import Pending, Stage
from clipfleet.producer.requests import NewRequest, run
from clipfleet.producer.runner import Runner
from clipfleet.producer.window import Entry, Window, failure_of
from clipfleet.schemas.errors import RequestFailed
from clipfleet.schemas.keys import ID, Lane
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE, DEFAULT_TTL_MS, MAX_UNANSWERED
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from clipfleet.producer.backend import ThreadBackend

__all__ = ["Client", "Job"]

# The engine ends every request by its deadline; this is for a machine that stops it meanwhile.
OVERTIME_S: Final = 5.0


class Job(Pending):
    """A request on its way.

    Attributes:
        id: with it, ``client.job(id)`` finds the result of a request sent with ``reply="key"``.
    """

    __slots__ = ("_backend", "_done_latch", "_sink", "_taken_latch", "entry")

    def __init__(
        self, backend: ThreadBackend, *args: Any, sink: SimpleQueue[Job] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._backend = backend
        self._sink = sink
        self._done_latch: threading.Lock | None = None
        self._taken_latch: threading.Lock | None = None
        self.entry: Entry | None = None

    def done(self) -> bool:
        """Whether the result is here."""
        return self.stage is Stage.DONE

    def result(self, timeout: float | None = None) -> Result:
        """The result.

        Args:
            timeout: seconds to wait; None = until the request's deadline.

        Raises:
            RequestFailed: how it failed.
            TimeoutError: it is still under way after ``timeout``.
        """
        return self.outcome(timeout).unwrap()

    def outcome(self, timeout: float | None = None) -> Result:
        """As ``result``, but a failure is returned too, as a result that is not ``ok``."""
        if not self.inbox and not self.done():
            self._backend.look_for(self)
        try:
            self._wait(timeout)
        finally:
            if not self.inbox and not self.done():
                self._backend.look_no_more(self)
        if self.ending is None:
            raise TimeoutError(f"no result of request {self.id} yet")
        return self.ending

    def accepted(self, timeout: float | None = None) -> Self:
        """Wait until the request is in the queue.

        Raises:
            RequestFailed: it has failed already: ``QueueFull``, ``Unavailable``, ...
            TimeoutError: that is not known after ``timeout``.
        """
        self.watched = True
        self._latch("_taken_latch", lambda: self.stage >= Stage.ACCEPTED, timeout)
        if self.stage < Stage.ACCEPTED:
            raise TimeoutError(f"request {self.id} is not in the queue yet")
        if self.ending is not None:
            self.ending.unwrap()
        return self

    def cancel(self) -> None:
        """End the request as ``cancelled``; a worker that has not started on it drops it."""
        self._backend.cancel(self)

    def notify(self) -> None:
        """See ``Pending``; runs in the client's own thread."""
        taken, self._taken_latch = self._taken_latch, None
        if taken is not None:
            taken.release()
        if self.stage is Stage.DONE:
            done, self._done_latch = self._done_latch, None
            if done is not None:
                done.release()
            sink, self._sink = self._sink, None
            if sink is not None:
                sink.put(self)

    def _wait(self, timeout: float | None) -> None:
        if timeout is None:
            timeout = max(0.0, self.deadline - time.monotonic()) + OVERTIME_S
        self._latch("_done_latch", lambda: self.stage is Stage.DONE, timeout)

    def _latch(self, name: str, is_open: Callable[[], bool], timeout: float | None) -> None:
        """Wait until ``notify``. It runs after the stage is set, so who sees the stage needs no latch."""
        if is_open():
            return
        with self._backend.lock:
            latch: threading.Lock | None = getattr(self, name)
            if latch is None:
                latch = threading.Lock()
                latch.acquire()
                setattr(self, name, latch)
        if not is_open() and latch.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            latch.release()  # the next waiter's turn


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

    Raises:
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
        """
        return self._send(request.loaded(), self._config.lane, Delivery()).result()

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
        """
        if isinstance(request, str):
            request = run(request, inputs or {}, options, timeout=timeout, id=id)
        delivery = Delivery(reply, reply_ttl_ms, trace)
        return self._send(request.loaded(), Lane(lane) if lane else self._config.lane, delivery)

    def job(self, id: str) -> Job:  # noqa: A002 - the contract's name
        """A request that was submitted elsewhere with ``reply="key"``.

        Its ``result()`` waits for the client's ``timeout`` unless told otherwise, then raises TimeoutError: whether
        there ever was such a request cannot be known.

        Raises:
            ValueError: for what is no id.
        """
        if not ID.match(id):
            raise ValueError("an id matches [A-Za-z0-9_-]{1,64}")
        now = time.monotonic()
        timeout = self._config.timeout_s or DEFAULT_TTL_MS / 1000
        job = Job(self._running(), id, self._config.lane, b"", now, now + timeout, inbox=False)
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
        """
        for _, result in self.map_with_request(requests, max_in_flight=max_in_flight, ordered=ordered, lane=lane):
            yield result

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
            return self._send(request.loaded(), to_lane, Delivery(), sink)

        return _stream(iter(requests), Window(max_in_flight, ordered=ordered), send)

    def _send(self, request: NewRequest, lane: Lane, delivery: Delivery, sink: SimpleQueue[Job] | None = None) -> Job:
        timeout = self._config.timeout_of(request)
        backend = self._running()
        self._config.check_room(backend.unanswered)
        request_id, payload = delivery.encode(request, backend.inbox_key)
        now = time.monotonic()
        job = Job(backend, request_id, lane, payload, now, now + timeout, inbox=delivery.reply == "inbox", sink=sink)
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
                raise RuntimeError("the client was closed")
            if self._backend is not None and self._backend.inherited:
                self._backend.leave_to_parent()
                self._backend = None
            if self._backend is None:
                self._backend = self._new_backend()
                weakref.finalize(self, self._backend.stop)
            return self._backend


def _stream(
    source: Iterator[NewRequest], window: Window, send: Callable[[NewRequest, SimpleQueue[Job]], Job]
) -> Iterator[tuple[NewRequest, Result]]:
    sink: SimpleQueue[Job] = SimpleQueue()
    exhausted = False
    try:
        while not (exhausted and window.empty):
            for entry in window.resend(time.monotonic()):
                _start(entry, window, send, sink)
            if not exhausted and (room := window.room):
                requests = islice(source, room)
                exhausted = sum(_start(window.add(request), window, send, sink) for request in requests) < room
            if (item := window.pop()) is not None:
                yield item
            elif not window.empty:
                _collect(sink, window)
    finally:
        window.abandon()


def _start(
    entry: Entry, window: Window, send: Callable[[NewRequest, SimpleQueue[Job]], Job], sink: SimpleQueue[Job]
) -> int:
    try:
        job = send(entry.request, sink)
    except (RequestFailed, OSError) as error:
        window.ended(entry, failure_of(entry.request, error), time.monotonic())
    else:
        job.entry = entry
        entry.cancel = job.cancel
    return 1


def _collect(sink: SimpleQueue[Job], window: Window) -> None:
    """Wait for a result, or for the time to send refused ones again; take all that is there."""
    try:
        job = sink.get(timeout=window.pause_s(time.monotonic()))
        while True:
            if job.entry is not None and job.ending is not None:
                window.ended(job.entry, job.ending, time.monotonic())
            job = sink.get_nowait()
    except Empty:
        return
