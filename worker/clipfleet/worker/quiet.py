"""Log lines that others can cause at will: one a second, with the number of those left out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

__all__ = ["Quiet"]

EVERY_S = 1.0


class Quiet:
    """One kind of warning, for one thread.

    Args:
        log: where to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next_at = 0.0
        self._left_out = 0

    def warning(self, text: str, *args: object) -> None:
        """Log it, unless one of its kind was logged within the last second."""
        now = time.monotonic()
        if now < self._next_at:
            self._left_out += 1
            return
        self._next_at = now + EVERY_S
        more = f" ({self._left_out} more like it)" if self._left_out else ""
        self._left_out = 0
        self._log.warning(text + more, *args)
