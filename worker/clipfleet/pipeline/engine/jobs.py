"""What waits for the threads of a pool: interactive jobs first, so that none is decoded behind a bulk run."""

from __future__ import annotations

import queue
from collections import deque
from typing import Generic, TypeVar

from clipfleet.batching import Lane

__all__ = ["Jobs"]

T = TypeVar("T")

BULK_SHARE = 8


class Jobs(Generic[T]):
    """Jobs of both lanes, each in order; of each 8 one is bulk's while it has any.

    A job is put into its lane before a token for it into the queue that the threads wait on, and taken after one: so
    there is a job for whoever has a token, and no lock of ours.
    """

    __slots__ = ("_bulk", "_interactive", "_passed", "_tokens")

    def __init__(self) -> None:
        self._interactive: deque[T] = deque()
        self._bulk: deque[T] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._passed = 0  # interactive jobs since the last one of bulk's; threads that race cost a place at the most

    def __len__(self) -> int:
        return len(self._interactive) + len(self._bulk)

    def put(self, job: T, lane: Lane) -> None:
        """One more; never blocks."""
        (self._bulk if lane is Lane.BULK else self._interactive).append(job)
        self._tokens.put(True)

    def end(self, takers: int) -> None:
        """Let so many takers end, after what was put before."""
        for _ in range(takers):
            self._tokens.put(False)

    def get(self) -> T | None:
        """Block until there is a job; None: the taker is to end."""
        if not self._tokens.get():
            return None
        while True:
            bulk = bool(self._bulk) and (not self._interactive or self._passed >= BULK_SHARE - 1)
            try:
                job = (self._bulk if bulk else self._interactive).popleft()
            except IndexError:  # another thread was quicker; there is another one for this thread
                continue
            self._passed = 0 if bulk or not self._bulk else self._passed + 1
            return job
