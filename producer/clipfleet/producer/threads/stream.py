"""``map`` for threads: the caller's own thread feeds requests in and takes results out."""

from __future__ import annotations

import time
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from clipfleet.producer.core.window import Entry, Window, failure_of
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.producer.requests import NewRequest
    from clipfleet.producer.threads.job import Job
    from clipfleet.schemas.result import Result

__all__ = ["stream"]

Sink: TypeAlias = "Callable[[Job], None]"


def stream(
    source: Iterator[NewRequest], window: Window, send: Callable[[NewRequest, Sink], Job]
) -> Iterator[tuple[NewRequest, Result]]:
    """Each request of ``source`` with its result; ``send`` sends one and has its job given to the sink when done."""
    done: SimpleQueue[Job] = SimpleQueue()
    sink = done.put
    exhausted = False
    try:
        while not (exhausted and window.empty):
            for entry in window.resend(time.monotonic()):
                _start(entry, window, send, sink)
            if not exhausted and (room := window.room):
                # One by one: what the source has given is on its way before it is asked for the next.
                requests = islice(source, room)
                exhausted = sum(_start(window.add(request), window, send, sink) for request in requests) < room
            if items := window.take():
                yield from items
            elif not window.empty:
                _collect(done, window)
    finally:
        window.abandon()


def _start(entry: Entry, window: Window, send: Callable[[NewRequest, Sink], Job], sink: Sink) -> int:
    try:
        job = send(entry.request, sink)
    except (RequestFailed, OSError) as error:
        window.ended(entry, failure_of(entry.request, error), time.monotonic())
    else:
        job.entry = entry
        entry.job = job
    return 1


def _collect(done: SimpleQueue[Job], window: Window) -> None:
    """Wait for a result, or for the time to send refused ones again; take all that is there."""
    now = time.monotonic()
    try:
        job = done.get(timeout=window.pause_s(now))
        now = time.monotonic()
        while True:
            if job.entry is not None and job.ending is not None:
                window.ended(job.entry, job.ending, now)
            job = done.get_nowait()
    except Empty:
        return
