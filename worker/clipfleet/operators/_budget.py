"""How many large pictures are decoded at once."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Budget"]


class Budget:
    """Hands out parts of a capacity, first come, first served, so that a large part is not starved by small ones."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._used = 0

    @contextlib.contextmanager
    def hold(self, amount: int, capacity: int) -> Iterator[None]:
        """Wait until ``amount`` is free, and hold it. More than the capacity means all of it."""
        amount = min(amount, capacity)
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and (not self._used or self._used + amount <= capacity)
                )
                self._used += amount
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= amount
                self._changed.notify_all()
