"""What the tests of batching share: a function that can be held, and that no thread of `@batched` outlives a test."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from support.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads are stopped between any two of their steps, and not after 5 ms alone."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("batched-"):
            thread.join(5)
            assert not thread.is_alive()
