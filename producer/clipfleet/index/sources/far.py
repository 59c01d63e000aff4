"""Several things asked of a store at once, since each answer is a round trip away."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from clipfleet.index.files import MAX_FILE_BYTES
from clipfleet.index.sources.item import Item, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from clipfleet.index.sources.item import Event

__all__ = ["AT_ONCE", "FarCalls", "read_ahead"]

T = TypeVar("T")

# s3fs needs about this many to keep one core busy: beyond it, several processes or hosts are what helps.
AT_ONCE: Final = 16
# Of pictures that are read and not yet asked for; one alone may be larger.
_MOST_BYTES: Final = 64 << 20
# Of everything that stands behind a picture which has not come yet.
_MOST_WAITING: Final = 1_024


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    function: Callable[[], T]
    answer: Future[T]


class FarCalls:
    """Threads that make calls, at most 16 of them at once; a context manager.

    Its end waits for nobody, nor does that of the process. Calls that are not begun by then are made all the same,
    unless it ends by an error: then they are forgotten.
    """

    def __init__(self) -> None:
        self._todo: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._ended.set()
        for _thread in self._threads:
            self._todo.put(None)

    def begin(self, function: Callable[[], T]) -> Future[T]:
        """Call ``function`` in a thread, as soon as one is free."""
        if len(self._threads) < AT_ONCE:
            # ThreadPoolExecutor's threads would be waited for at the end of the process.
            self._threads.append(threading.Thread(target=self._work, name="far", daemon=True))
            self._threads[-1].start()
        answer: Future[T] = Future()
        self._todo.put(_Call(function, answer))
        return answer

    def _work(self) -> None:
        while (call := self._todo.get()) is not None:
            if self._ended.is_set():
                call.answer.cancel()
                continue
            try:
                call.answer.set_result(call.function())
            except BaseException as error:  # noqa: BLE001 - whoever asks for the answer gets it
                call.answer.set_exception(error)


def read_ahead(events: Generator[Event], wanted: Callable[[Item], bool]) -> Generator[Event]:
    """The same events in the same order; far pictures are being read when their turn comes.

    A picture that cannot be read says so where it is asked for its bytes, and costs no other anything.

    Args:
        events: of a source; closed with this.
        wanted: whether an item will be asked for its bytes.
    """
    with closing(events), FarCalls() as calls:
        yield from _ahead(events, wanted, calls)


def _ahead(events: Iterable[Event], wanted: Callable[[Item], bool], calls: FarCalls) -> Generator[Event]:
    window = _Window()
    for event in events:
        size = 0
        if isinstance(event, Item) and isinstance(event.picture, Stored) and event.picture.far and wanted(event):
            # How large it is nobody has told: then as large as it may be.
            size = MAX_FILE_BYTES if event.size is None else event.size
            while window.is_full(size):
                yield window.pop()
            answer = calls.begin(event.picture.read)
            event = replace(event, picture=replace(event.picture, read=answer.result))  # noqa: PLW2901 - the same one
            window.add(event, size, far=True)
        elif not window:
            yield event
        else:
            if isinstance(event, Item) and isinstance(event.picture, bytes):
                size = len(event.picture)
            while window.is_full(size, far=False):
                yield window.pop()
            window.add(event, size, far=False)
    while window:
        yield window.pop()


class _Window:
    """Events that wait for their turn: how many of them are being read, and how large all are."""

    def __init__(self) -> None:
        self._events: deque[tuple[Event, int, bool]] = deque()
        self._far = self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def is_full(self, size: int, *, far: bool = True) -> bool:
        """Whether one more of this size has no room; there is always room for one."""
        if not self._events:
            return False
        crowded = self._far >= AT_ONCE if far else len(self._events) >= _MOST_WAITING
        return crowded or self._bytes + size > _MOST_BYTES

    def add(self, event: Event, size: int, *, far: bool) -> None:
        """One more, at the end."""
        self._events.append((event, size, far))
        self._far += far
        self._bytes += size

    def pop(self) -> Event:
        """The first one."""
        event, size, far = self._events.popleft()
        self._far -= far
        self._bytes -= size
        return event
