"""One request on its way through the stages of its pipeline."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.schemas.request import Request

__all__ = ["Plan", "Work"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pipeline makes of a request: which stages, with what, and how outputs come of it.

    Attributes:
        steps: names of stages, in order.
        value: what the first stage gets.
        finish: outputs from the work after its last stage.
        params: what later stages need besides the value, checked already.
        needs_store: whether a stage of it asks the store.
        model: whether a vector of the model is involved; its fingerprint then stands in the result.
    """

    steps: tuple[str, ...]
    value: Any
    finish: Callable[[Work], dict[str, Any]]
    params: dict[str, Any] = field(default_factory=dict)
    needs_store: bool = False
    model: bool = True


@dataclass(slots=True, eq=False)
class Work:
    """A request in this process.

    Attributes:
        request: what was asked.
        plan: which stages it takes.
        entry: what the caller of the stages knows it by: a worker's lease on it.
        enqueued_at: monotonic seconds from which its age counts.
        deadline: monotonic seconds after which nobody waits for it.
        lane: whose items go first.
        value: what the next stage gets.
        step: index of the next stage.
        notes: for the result: ``truncated`` and the like.
        timing: milliseconds by name, for the result.
        mark: when the current step began (monotonic, s).
        ticket: announced place in a batch, while it is prepared.
    """

    request: Request
    plan: Plan
    entry: Any
    enqueued_at: float
    deadline: float
    lane: Any
    value: Any
    step: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    mark: float = field(default_factory=time.monotonic)
    ticket: int | None = None

    @property
    def stage(self) -> str | None:
        """The next stage; None when all are done."""
        steps = self.plan.steps
        return steps[self.step] if self.step < len(steps) else None

    def lap(self, name: str) -> None:
        """Book the time since the last mark under ``name``."""
        now = time.monotonic()
        self.timing[name] = round(self.timing.get(name, 0.0) + (now - self.mark) * 1000.0, 3)
        self.mark = now
