"""Wait for a condition, never for a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

POLL_S = 0.005


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, description: str = "") -> T:
    """The first true value of ``predicate``; AssertionError with ``description`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        value = predicate()
        if value:
            return value
        ended = time.monotonic()
        if ended > deadline:
            what = description or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"waited {timeout:g} s in vain for: {what} (last value {value!r})")
        # Who asks at length leaves as much time to what it asks about.
        time.sleep(max(POLL_S, ended - began))


def quickest(call: Callable[[], object], times: int = 3) -> float:
    """Seconds that ``call`` takes when nothing else gets in its way: the least of several, on a busy machine too."""
    took = []
    for _ in range(times):
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)
    return min(took)
