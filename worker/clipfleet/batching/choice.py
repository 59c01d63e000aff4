"""Inside the batchers: which of the stages of one device goes first. Pure, as the rule is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from clipfleet.batching.rule import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.batching.stage import Stage


class Choice(NamedTuple):
    """What a free device is given.

    Attributes:
        stage: whose batch.
        reason: why that is launched now.
        passes: whether it goes before a batch of bulk items alone that is due as well.
    """

    stage: Stage[Any]
    reason: Reason
    passes: bool


def choose(stages: Sequence[Stage[Any]], now: float, owed_s: float) -> Choice | float:
    """The batch to launch now, or the time before which time alone gives none.

    Interactive items go first, the oldest at the head, since whoever waits for a batch of bulk items once shall not
    wait for a second one. Those that are due but still wait for siblings wait no longer where a bulk batch would take
    the device instead. So that bulk does not starve, it goes first when it is owed the time that its batch takes.

    Args:
        stages: of one device.
        now: the time, monotonic seconds.
        owed_s: seconds of the device that bulk is owed, for the interactive batches that went before it.
    """
    if len(stages) == 1:  # nothing to choose, and asked for each batch of a function in process
        decision = stages[0].decide(now)
        return Choice(stages[0], decision, passes=False) if isinstance(decision, Reason) else decision
    decisions = [(stage, stage.decide(now)) for stage in stages]
    due = [(stage, decision) for stage, decision in decisions if isinstance(decision, Reason)]
    if not due:
        return min((decision for _, decision in decisions if not isinstance(decision, Reason)), default=math.inf)
    bulk = [(stage, reason) for stage, reason in due if stage.queue.interactive_at == math.inf]
    if not bulk:
        return Choice(*min(due, key=lambda one: one[0].queue.interactive_at), passes=False)
    live = [one for one in due if one[0].queue.interactive_at < math.inf]
    live += [
        (stage, Reason.DELAY)
        for stage, decision in decisions
        if not isinstance(decision, Reason) and stage.queue.is_due(now)
    ]
    first_bulk = min(bulk, key=lambda one: one[0].queue.oldest_at)
    if not live or 0 < owed_s >= first_bulk[0].next_run_s:
        return Choice(*first_bulk, passes=False)
    return Choice(*min(live, key=lambda one: one[0].queue.interactive_at), passes=True)
