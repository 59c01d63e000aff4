"""Every Redis key of a queue, spelled in this one place.

All keys of queue ``Q`` carry the hash tag ``{Q}``, so they live in one slot of a Redis Cluster and one script may
touch several of them. What each holds and how long it lives: docs/protocol.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

from clipfleet.schemas.errors import ProtocolError
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE

__all__ = ["ID", "NAME", "Lane", "QueueKeys"]

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
PREFIX: Final = re.compile(r"[A-Za-z0-9_:-]{1,64}\Z")
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class Lane(StrEnum):
    """The two streams of a queue: somebody waits for the one, nobody waits for the other."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue.

    Attributes:
        queue: its name, ``[A-Za-z0-9_.-]{1,64}``.
        prefix: what all keys start with, ``[A-Za-z0-9_:-]{1,64}``.

    Raises:
        ProtocolError: ``bad_request`` when a name does not match.
    """

    queue: str = DEFAULT_QUEUE
    prefix: str = DEFAULT_PREFIX
    base: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not NAME.match(self.queue):
            raise ProtocolError(f"queue name {self.queue[:80]!r} does not match [A-Za-z0-9_.-]{{1,64}}")
        if not PREFIX.match(self.prefix):
            raise ProtocolError(f"key prefix {self.prefix[:80]!r} does not match [A-Za-z0-9_:-]{{1,64}}")
        object.__setattr__(self, "base", f"{self.prefix}:{{{self.queue}}}:")

    def lane(self, lane: Lane) -> str:
        """Stream: one entry per request that is waiting or in flight."""
        return self.base + lane.value

    @property
    def lanes(self) -> tuple[str, str]:
        """Both lanes, in the order that the scripts take them."""
        return self.lane(Lane.INTERACTIVE), self.lane(Lane.BULK)

    def other_lane(self, lane_key: str) -> str:
        """The lane that ``lane_key`` is not."""
        interactive, bulk = self.lanes
        return bulk if lane_key == interactive else interactive

    def result(self, request_id: str) -> str:
        """List of one: the result, until its TTL."""
        return f"{self.base}result:{request_id}"

    def inbox(self, producer: str) -> str:
        """List: results for one live producer process."""
        return f"{self.base}inbox:{producer}"

    def cancel(self, request_id: str) -> str:
        """String: the request is not wanted any more."""
        return f"{self.base}cancel:{request_id}"

    def call(self, producer: str, number: int) -> str:
        """String: the answer to one admit call, so that a retried call adds nothing."""
        return f"{self.base}call:{producer}.{number}"

    @property
    def dead(self) -> str:
        """Stream: dead letters."""
        return self.base + "dead"

    @property
    def bytes(self) -> str:
        """String: payload bytes queued."""
        return self.base + "bytes"

    @property
    def workers(self) -> str:
        """Sorted set: worker -> last heartbeat, unix ms."""
        return self.base + "workers"

    def worker(self, worker: str) -> str:
        """Hash: presence of one worker."""
        return f"{self.base}worker:{worker}"

    @property
    def fleet(self) -> str:
        """Hash: what all workers of the queue agree on."""
        return self.base + "fleet"

    def is_inbox(self, reply_to: str) -> bool:
        """Whether ``reply_to`` names an inbox of this queue."""
        return _is_inbox(self.base, reply_to)

    def may_reply_to(self, reply_to: str, request_id: str) -> bool:
        """Whether a worker may write the result of ``request_id`` to ``reply_to``.

        Only the request's own result key and inboxes qualify: anything else would let a producer make the fleet
        write to a key of its choice.
        """
        return reply_to == self.result(request_id) or self.is_inbox(reply_to)


@lru_cache(maxsize=1_024)  # a producer names its own with each request
def _is_inbox(base: str, reply_to: str) -> bool:
    start = base + "inbox:"
    return reply_to.startswith(start) and NAME.match(reply_to, len(start)) is not None
