"""Giving memory back after a large picture.

Pillow takes pictures in blocks of 16 MB. glibc, once such blocks have been freed, keeps the next ones in the arena
of the thread that freed them: four decoding threads that took turns with 300 MB each held 1.2 GB (measured).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["give_back"]


def give_back() -> None:
    """Return what glibc holds of freed memory to the system; nothing happens with another C library."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
