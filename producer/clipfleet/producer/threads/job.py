"""A request that a thread waits for."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from clipfleet.producer.core.pending import Pending, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from clipfleet.producer.backend import ThreadBackend
    from clipfleet.producer.core.window import Entry
    from clipfleet.schemas.keys import Lane
    from clipfleet.schemas.result import Result

__all__ = ["Job"]

# The engine ends every request of its own by its deadline; this is for a machine that stops it meanwhile.
OVERTIME_S: Final = 5.0
_DONE: Final = Stage.DONE


class Job(Pending):
    """A request on its way.

    Attributes:
        id: with it, ``client.job(id)`` finds the result of a request sent with ``reply="key"``.
    """

    __slots__ = ("_backend", "_client", "_done_latch", "_sink", "_taken_latch", "entry")

    def __init__(  # noqa: PLR0913, PLR0917 - made for every request: gathering them in an object would be a cost of its own
        self,
        client: object,
        backend: ThreadBackend,
        request_id: str,
        lane: Lane,
        payload: bytes,
        submitted: float,
        deadline: float,
        inbox: bool,  # noqa: FBT001 - by name it would be a dict for every request
        sink: Callable[[Job], None] | None = None,
    ) -> None:
        Pending.__init__(self, request_id, lane, payload, submitted, deadline, inbox)  # quicker than by super()
        self._backend = backend
        self._client = client  # closed when nobody holds it any more; a request under way does
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
            timeout: seconds to wait; None = until it has ended, by its deadline at the latest. A request that was
                submitted elsewhere is waited for as long as this client's own would be.

        Raises:
            RequestFailed: how it failed.
            TimeoutError: it is still under way after ``timeout``.
        """
        try:
            return self.outcome(timeout).unwrap()
        finally:
            del self  # see ``Result.unwrap``

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
        if self.ending is not None and not self.ending.ok:
            try:
                self.ending.unwrap()
            finally:
                del self  # see ``Result.unwrap``
        return self

    def cancel(self) -> None:
        """End the request as ``cancelled``; a worker that has not started on it drops it."""
        if not self.done():
            self._backend.cancel(self)

    def notify(self) -> None:
        """See ``Pending``; runs in the client's own thread."""
        if self._taken_latch is not None:
            self._taken_latch.release()
            self._taken_latch = None
        if self.stage is _DONE:
            if self._done_latch is not None:
                self._done_latch.release()
                self._done_latch = None
            if self._sink is not None:
                self._sink(self)
                self._sink = None

    def _wait(self, timeout: float | None) -> None:
        if timeout is None:
            timeout = max(0.0, self.deadline - time.monotonic()) + (0.0 if self.found else OVERTIME_S)
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
