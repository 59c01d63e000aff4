"""A function over batches that can be held inside."""

from __future__ import annotations

import threading
from typing import Any

LONG = 30.0  # a delay or timeout that no test sits out


class Gate:
    """A function over batches that records them and can be held inside."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def __call__(self, batch: list[Any]) -> list[Any]:
        self.batches.append(list(batch))
        self.entered.set()
        assert self.open.wait(LONG)
        return [item * 10 for item in batch]

    def hold(self) -> None:
        self.entered.clear()
        self.open.clear()
