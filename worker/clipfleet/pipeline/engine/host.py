"""What an engine needs of whoever runs it: a worker with leases on requests, or a process that calls itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Sequence

    from clipfleet.pipeline.engine.hooks import Hooks
    from clipfleet.pipeline.observer import Observer
    from clipfleet.pipeline.work import Work
    from clipfleet.schemas.errors import RequestFailed

    Finished = tuple[Work, list[tuple[Any, ...]]]

__all__ = ["Gate", "Host"]


class Gate(Protocol):
    """Asked by one thread before it spends a device or the store on works."""

    def wanted(self, works: Sequence[Work]) -> list[Work]:
        """Those that are still ours, in time and not cancelled; the host has settled the others. Waits if it must."""
        ...

    def owned(self, works: Sequence[Work]) -> list[Work]:
        """Those that are still ours. Waits if it must."""
        ...


class Host(Protocol):
    """Who runs the engine.

    Attributes:
        hooks: called at each point.
        observer: told of each call of a stage; None: nobody looks.
        stop: set when all is to stop; cuts every wait short.
    """

    @property
    def hooks(self) -> Hooks: ...  # noqa: D102  (see above; a property, so that a frozen host will do)
    @property
    def observer(self) -> Observer | None: ...  # noqa: D102
    @property
    def stop(self) -> threading.Event: ...  # noqa: D102

    def gate(self, name: str) -> Gate:
        """A gate for a thread of its own."""
        ...

    def left_s(self, work: Work) -> float:
        """Seconds until its deadline; negative after it."""
        ...

    def late(self, work: Work) -> RequestFailed | None:
        """The error of a work whose deadline has passed, else None."""
        ...

    def failed(self, failures: Sequence[tuple[Work, RequestFailed]]) -> None:
        """These have ended in an error. Never blocks."""
        ...

    def finished(self, finished: Sequence[Finished]) -> None:
        """These have their rows of outputs. Never blocks."""
        ...

    def to_store(self, works: Iterable[Work]) -> None:
        """These wait for the store from now on."""
        ...

    def calling(self, who: object, *, begins: bool) -> None:
        """A batch call of a thread's loop begins, or ends, or is given up; one that never ends must be noticed."""
        ...

    def crashed(self, thread: str) -> None:
        """A thread of the engine died of a fault of ours; called inside the handler of its exception."""
        ...

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether it is the device's lack of memory and no item's fault."""
        ...
