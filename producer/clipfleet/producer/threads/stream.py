"""``map`` for threads: the caller's own thread feeds requests in and takes results out."""

from __future__ import annotations

import time
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from clipfleet.producer.asked import Answer, Asked
from clipfleet.producer.core.window import Entry, Window, failure_of
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.producer.requests import NewRequest
    from clipfleet.producer.threads.job import Job
    from clipfleet.schemas.result import Result

__all__ = ["stream", "stream_beside"]

Sink: TypeAlias = "Callable[[Job], None]"
# A source that gives at once is read until there is no room, so that its requests go out in one call; a slower one is
# left for the results that came meanwhile.
_SOON_S: Final = 0.01


def stream(
    source: Iterator[NewRequest], window: Window, send: Callable[[NewRequest, Sink], Job]
) -> Iterator[tuple[NewRequest, Result]]:
    """Each request of ``source`` with its result; ``send`` sends one and has its job given to the sink when done.

    The source is asked in the caller's thread, whose connections and transactions may be in it. What comes while it
    blocks is given when it has given the next one, and no later; see ``stream_beside``. What it raises is raised once
    all that it gave before has been given.
    """
    done: SimpleQueue[Job] = SimpleQueue()
    sink = done.put
    exhausted = False
    broke: list[Exception] = []
    entries = _entries(source, window, broke)
    try:
        while not (exhausted and window.empty):
            for entry in window.resend(time.monotonic()):
                _start(entry, window, send, sink)
            slow = False
            if not exhausted and (room := window.room):
                exhausted, slow = _feed(entries, room, window, send, done)
            if slow:
                _collect(done, window)
            given = False
            while items := window.take():
                yield from items
                given = True
                if not slow:
                    break
            if not given and not slow and not window.empty:
                _collect(done, window)
        if broke:
            raise broke.pop()  # and in no list: a list of this frame's would keep both until cycles are looked for
    finally:
        window.abandon()


def stream_beside(
    source: Iterator[NewRequest], window: Window, send: Callable[[NewRequest, Sink], Job]
) -> Iterator[tuple[NewRequest, Result]]:
    """As ``stream``, with the source asked in a thread of its own, for one request at a time: nothing waits for it."""
    news: SimpleQueue[Job | Answer] = SimpleQueue()
    asked = Asked(source, news.put)
    broke: list[Exception] = []
    try:
        while not (asked.exhausted and window.empty):
            for entry in window.resend(time.monotonic()):
                _start(entry, window, send, news.put)
            if window.room:
                asked.ask()
            if items := window.take():
                yield from items
            elif isinstance(one := _next(news, window), Answer):
                if (new := _entry_of(one, asked, window, broke)) is not None:
                    _start(new, window, send, news.put)
            elif one is not None and one.entry is not None and one.ending is not None:
                window.ended(one.entry, one.ending, time.monotonic())
        if broke:
            raise broke.pop()
    finally:
        asked.leave()
        window.abandon()


def _entries(source: Iterator[NewRequest], window: Window, broke: list[Exception]) -> Iterator[Entry]:
    """What the source gives, taken into the window; it ends where the source raises, and ``broke`` has what."""
    try:
        for request in source:
            yield window.add(request)
    except Exception as error:  # noqa: BLE001 - the caller's own, which is raised when its turn has come
        broke.append(error)


def _entry_of(answer: Answer, asked: Asked, window: Window, broke: list[Exception]) -> Entry | None:
    """The same of one answer."""
    try:
        request = asked.answered(answer)
        return None if request is None else window.add(request)
    except Exception as error:  # noqa: BLE001 - as above
        asked.exhausted = True
        broke.append(error)
        return None


def _next(news: SimpleQueue[Job | Answer], window: Window) -> Job | Answer | None:
    try:
        return news.get(timeout=window.pause_s(time.monotonic()))
    except Empty:
        return None


def _feed(
    entries: Iterator[Entry], room: int, window: Window, send: Callable[[NewRequest, Sink], Job], done: SimpleQueue[Job]
) -> tuple[bool, bool]:
    """Send what the source gives, ``room`` at most; whether it has nothing more, and whether results came meanwhile."""
    soon, clock, nothing_came, sink = time.monotonic() + _SOON_S, time.monotonic, done.empty, done.put
    taken = 0
    # One by one: what the source has given is on its way before it is asked for the next.
    for taken, entry in enumerate(islice(entries, room), start=1):  # noqa: B007 - used after the loop
        _start(entry, window, send, sink)
        if not nothing_came() and clock() > soon:
            return False, True
    return taken < room, False


def _start(entry: Entry, window: Window, send: Callable[[NewRequest, Sink], Job], sink: Sink) -> None:
    try:
        job = send(entry.request, sink)
    except (RequestFailed, OSError) as error:
        window.ended(entry, failure_of(entry.request, error), time.monotonic())
    else:
        job.entry = entry
        entry.job = job


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
