"""What comes of steps: gathered over a whole batch, so that nothing is made or handed over for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipfleet.pipeline.work import Task, Work

__all__ = ["Moves"]


class Moves:
    """What one thread's steps led to, for any number of requests.

    Attributes:
        tasks: what is to be done next.
        ended: requests that have all that they asked for, just now.
        broken: requests that are over since an inline step or a source of rows raised, and what it raised.
    """

    __slots__ = ("broken", "ended", "tasks")

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.ended: list[Work] = []
        self.broken: list[tuple[Work, Exception]] = []
