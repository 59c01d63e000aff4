"""What carries a client's requests: an engine behind a thread or on a loop, or a test's double."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    import threading

    from clipfleet.producer.core.pending import Pending

__all__ = ["AsyncBackend", "Backend", "ThreadBackend"]


class Backend(Protocol):
    """Takes requests and, some time later, calls ``notify`` on each that has ended."""

    @property
    def inbox_key(self) -> str:
        """Where results come to."""

    @property
    def unanswered(self) -> int:
        """How many requests are in hand."""

    @property
    def inherited(self) -> bool:
        """Whether it is a parent process's."""

    def leave_to_parent(self) -> None:
        """Never finalise it in this process: that would break the parent's connections."""

    def add(self, request: Pending) -> None:
        """Take a request."""

    def cancel(self, request: Pending) -> None:
        """End it as cancelled."""

    def look_for(self, request: Pending) -> None:
        """Somebody waits for a result on a key of its own."""

    def look_no_more(self, request: Pending) -> None:
        """One of those waits no more."""


class ThreadBackend(Backend, Protocol):
    """For a client that any thread may use."""

    @property
    def lock(self) -> threading.Lock:
        """Guards what waiters create."""

    def stop(self) -> None:
        """Decide what is being admitted, end the rest."""


class AsyncBackend(Backend, Protocol):
    """For a client on one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""

    async def close(self) -> None:
        """Decide what is being admitted, end the rest."""
