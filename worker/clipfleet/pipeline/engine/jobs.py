"""What waits for the threads of a pool: interactive jobs first, so that none is decoded behind a bulk run."""

from __future__ import annotations

import queue
import threading
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from clipfleet.batching import Lane

__all__ = ["Jobs"]

T = TypeVar("T")

BULK_SHARE = 8


class Jobs(Generic[T]):
    """Jobs of both lanes, each in order; of each 8 one is bulk's while it has any.

    A job cannot be interrupted, and a picture takes its time: so that a live one never waits for the threads to be done
    with bulk jobs, one taker more, the *express*, takes it then.

    A job is put into its lane before a token for it into the queue that the takers wait on, and looked for after one:
    no lock of ours. Where express and takers have a token for the same job, who comes late waits for another.
    """

    __slots__ = ("_at_bulk", "_bulk", "_express", "_interactive", "_passed", "_tokens")

    def __init__(self) -> None:
        self._interactive: deque[T] = deque()
        self._bulk: deque[T] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._express: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._at_bulk: set[int] = set()  # threads that have a bulk job
        self._passed = 0  # interactive jobs since the last one of bulk's; threads that race cost a place at the most

    def __len__(self) -> int:
        return len(self._interactive) + len(self._bulk)

    def put(self, job: T, lane: Lane) -> None:
        """One more; never blocks."""
        if lane is Lane.BULK:
            self._bulk.append(job)
        else:
            self._interactive.append(job)
            if self._at_bulk:
                self._express.put(True)
        self._tokens.put(True)

    def end(self, takers: int) -> None:
        """Let so many takers end, and the express."""
        self._express.put(False)
        for _ in range(takers):
            self._tokens.put(False)

    def get(self) -> T | None:
        """Block until there is a job; None: the taker is to end."""
        me = threading.get_ident()
        self._at_bulk.discard(me)
        while self._tokens.get():
            while self._interactive or self._bulk:
                job = self._taken(me)
                if job is not None:
                    return job
        return None

    def get_express(self) -> T | None:
        """The same for the express: live jobs that come while a taker is at a bulk one."""
        while self._express.get():
            with suppress(IndexError):  # another thread was quicker
                return self._interactive.popleft()
        return None

    def _taken(self, me: int) -> T | None:
        """The next job; None if another thread was quicker, or a live one came meanwhile."""
        owed = self._passed >= BULK_SHARE - 1
        if self._bulk and (owed or not self._interactive):
            self._at_bulk.add(me)  # before looking again: whoever puts a live job either is seen here or sees this
            with suppress(IndexError):
                if owed or not self._interactive:
                    job = self._bulk.popleft()
                    self._passed = 0
                    # Those that came before this thread was at a bulk job have told the express nothing.
                    for _ in range(len(self._interactive)):
                        self._express.put(True)
                    return job
            self._at_bulk.discard(me)
            return None
        with suppress(IndexError):
            job = self._interactive.popleft()
            self._passed = self._passed + 1 if self._bulk else 0
            return job
        return None
