"""What the clients for threads and for asyncio have in common: settings, and a request's way to its job."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from clipfleet.producer.backend import Backend
from clipfleet.producer.calls import Calls, R
from clipfleet.producer.config import TO_INBOX, Config, Delivery, LaneName, ReplyKind, is_id, make_config
from clipfleet.producer.core.pending import Pending
from clipfleet.producer.requests import NewRequest, checked, run
from clipfleet.schemas.keys import Lane
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE, DEFAULT_TTL_MS, MAX_UNANSWERED

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

__all__ = ["Face"]

J = TypeVar("J", bound=Pending)
B = TypeVar("B", bound=Backend)


class Face(Calls[R], Generic[R, J, B]):
    """A client but for how one waits: ``R`` is what a call gives, ``J`` its job, ``B`` what carries its requests."""

    # A job of this client, of a backend, and of what ``Pending`` takes; when it has ended it is given to its ``sink``.
    _job: Callable[..., J]

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
        """Settings; nothing is connected yet.

        Args:
            url: ``redis://[user:password@]host:port/db``, ``rediss://`` for TLS, ``unix://path``.
            queue: the queue's name.
            prefix: what all of its keys start with.
            timeout: seconds that a request may take, for the caller's wait and for the fleet; None = 60, and 600 for
                ``index_image``.
            lane: ``interactive`` where somebody waits, ``bulk`` where nobody does.
            wait_for_worker: put requests into the queue although no worker lives, and wait for Redis until the
                deadline.
            durability: ``replica`` counts a request as accepted only when a replica has it, so that a failover loses
                none.
            max_unanswered: above so many the next one is refused at once (``QueueFull``); at most 4,096.
            io_timeout: seconds of silence after which a connection is given up.
            ssl_context: how to speak TLS, where the URL's own options do not do.

        Raises:
            TypeError: for a URL, a queue or a prefix that is no ``str``.
            ValueError: for settings that cannot be.
        """
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
        self._backend: B | None = None
        self._prepare()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._config.address}, queue={self._config.keys.queue!r})"

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
    ) -> J:
        """Send a request and go on; returns before Redis has it (``job.accepted()`` waits for that).

        Args:
            request: a pipeline's name with ``inputs`` and ``options``, or a built request alone. A picture's file is
                read here and now: on a busy event loop pass its bytes.
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
            OSError: its picture's file cannot be read.
            TypeError: it is no request, or its inputs are no mapping.
            RuntimeError: the client is closed.
        """
        if isinstance(request, str):
            request = run(request, {} if inputs is None else inputs, options, timeout=timeout, id=id)
        usual = reply == "inbox" and reply_ttl_ms is None and trace is None
        delivery = TO_INBOX if usual else Delivery(reply, reply_ttl_ms, trace)
        return self._send(checked(request).loaded(), self._lane(lane), delivery)

    def job(self, id: str) -> J:  # noqa: A002 - the contract's name
        """A request that was submitted elsewhere with ``reply="key"``.

        Its ``result()`` waits for the client's ``timeout`` unless told otherwise, then raises TimeoutError: whether
        there ever was such a request cannot be known.

        Raises:
            ValueError: for what is no id.
            RuntimeError: the client is closed.
        """
        if not is_id(id):
            raise ValueError("an id matches [A-Za-z0-9_-]{1,64}")
        now = time.monotonic()
        timeout = self._config.timeout_s or DEFAULT_TTL_MS / 1000
        job = self._job(self, self._running(), id, self._config.lane, b"", now, now + timeout, False)
        job.known_by_id()
        return job

    def _lane(self, lane: LaneName | None) -> Lane:
        return Lane(lane) if lane else self._config.lane

    def _send(self, request: NewRequest, lane: Lane, delivery: Delivery, sink: Callable[[J], None] | None = None) -> J:
        timeout = self._config.timeout_of(request)
        backend = self._running()
        if backend.unanswered >= self._config.max_unanswered:
            raise self._config.no_room()
        request_id, payload = delivery.encode(request, backend.inbox_key)
        now, inbox = time.monotonic(), delivery.reply == "inbox"
        job = self._job(self, backend, request_id, lane, payload, now, now + timeout, inbox, sink)
        backend.add(job)
        return job

    def _prepare(self) -> None:
        """Make what a face keeps besides: an ``__init__`` of its own would have to repeat all settings."""

    @abstractmethod
    def _new_backend(self) -> B:
        """What is to carry requests from now on."""

    @abstractmethod
    def _running(self) -> B:
        """What carries requests, begun if need be.

        Raises:
            RuntimeError: the client is closed.
        """
