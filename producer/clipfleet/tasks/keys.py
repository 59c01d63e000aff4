"""The Redis keys of indexing runs, spelled in this one place; those of the queue itself are ``schemas.keys``'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipfleet.schemas.keys import QueueKeys

__all__ = ["RunKeys"]


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Keys beside those of a queue, in the same slot of a cluster."""

    queue: QueueKeys

    @property
    def all(self) -> str:
        """Set: the runs that are under way."""
        return f"{self.queue.base}index:runs"

    def asked(self, digest: str) -> str:
        """String: the run that was last made for what was asked for, or that a task got who asked."""
        return f"{self.queue.base}index:asked:{digest}"

    def run(self, run: str) -> str:
        """JSON: one run."""
        return f"{self.queue.base}index:{run}"

    def shard(self, run: str, number: int) -> str:
        """JSON: one shard of it."""
        return f"{self.run(run)}:{number}"

    def done(self, run: str, number: int) -> str:
        """String: what is done of the shard's current unit."""
        return f"{self.shard(run, number)}:done"

    def failures(self, run: str, number: int) -> str:
        """List: the failures of the shard."""
        return f"{self.shard(run, number)}:failures"

    def pace(self, run: str) -> str:
        """List: how far the run was when somebody looked."""
        return f"{self.run(run)}:pace"

    def total(self, run: str) -> str:
        """String: how many pictures the run has."""
        return f"{self.run(run)}:total"
