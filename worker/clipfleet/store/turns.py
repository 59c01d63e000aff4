"""Writes that let searches go first, on a store that does one thing at a time."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Turns"]

WRITE_WAITS_S = 0.5


class Turns:
    """Who of the threads of a process may ask the store.

    Milvus Lite answers one call after the other. Beside a bulk run it is never idle: a search would wait for the writes
    before it, and for searches that waited likewise. Rows that wait meanwhile are written together, for less.

    Args:
        in_turn: whether the store is such a one; asked at the first write.
        most_s: how long a write waits at most: searches alone may keep the store busy.
    """

    def __init__(self, in_turn: Callable[[], bool], most_s: float = WRITE_WAITS_S) -> None:
        self._ask = in_turn
        self._in_turn: bool | None = None
        self._most_s = most_s
        self._searches = 0
        self._changed = threading.Condition()

    @contextmanager
    def searching(self) -> Iterator[None]:
        """For as long as a search is under way."""
        with self._changed:
            self._searches += 1
        try:
            yield
        finally:
            with self._changed:
                self._searches -= 1
                self._changed.notify_all()

    def await_write(self) -> bool:
        """Wait until nobody searches, if need be; whether that came to be.

        Raises:
            StoreUnavailable: what store it is cannot be told now.
        """
        if self._in_turn is None:
            self._in_turn = self._ask()
        if not self._in_turn:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._searches, self._most_s)
