"""Who cannot be answered in time any more: by what is held here already, and what runs were learnt to take.

Of a queue that is served in order, and filled faster than it is emptied, whoever comes to its head has waited until
its deadline is near: each is run, and each is answered too late. So where more waits than there is room for, a place
is given only to what will be in time with some certainty: what is given up for it is answered later than it is of use,
and what follows is younger. Where there is room for all, nobody loses by a try, and only what is sure to be too late
is given up. What has the device for itself is always tried.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipfleet.pipeline.engine.load import Load
from clipfleet.pipeline.stage import BatchStage, EachStage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clipfleet.batching import Batcher, Lane
    from clipfleet.pipeline.engine.pool import Pool
    from clipfleet.pipeline.program import Program, Step
    from clipfleet.pipeline.work import Task, Work

__all__ = ["Ahead", "Forecast", "too_late"]

CERTAIN = 1.25  # of the time that is expected: who has as much left will be in time
DOUBTFUL = 0.9  # who has less than that left will not be, by what is in its batch already
SURE_ITEMS = 10  # of fewer that left decode nothing is concluded


@dataclass(frozen=True, slots=True)
class Ahead:
    """What stands before new items of one stage, at one moment.

    Attributes:
        running_s: seconds that what the device is at still takes.
        waiting: items that go before them, those in decode included.
        decoding: those of them that are in decode.
        size: items in a full batch.
        most: items in the largest one, which those that go before them may be run in.
        takers: batches that run at a time.
        decode_s: seconds between two items that leave decode.
        run_s: seconds that a run of so many items takes at the least; None: too little is known.
    """

    running_s: float
    waiting: int
    decoding: int
    size: int
    most: int
    takers: int
    decode_s: float
    run_s: Callable[[int], float | None]


def too_late(left_s: Sequence[float], ahead: Ahead, *, contended: bool) -> list[bool]:
    """Which of new items cannot be answered in time.

    Args:
        left_s: seconds until the deadline of each, in the order in which they go into batches.
        ahead: what stands before them.
        contended: whether more waits than there is room for.

    Returns:
        For each item whether it is given up; False for all while too little is known.
    """
    late = [False] * len(left_s)
    full_s, most_s = ahead.run_s(ahead.size), ahead.run_s(ahead.most)
    if full_s is None or most_s is None:
        return late
    first = 0
    while first < len(left_s):
        # One batch at a time: those that are there already, and so many of ours as fill it up.
        there = (ahead.waiting + first) % ahead.size
        end = min(len(left_s), first + ahead.size - there)
        starts_s = ahead.running_s + (ahead.waiting + first) // ahead.most // ahead.takers * most_s
        places = range(first, end)
        if starts_s > 0:
            for place in places:
                if contended:
                    late[place] = left_s[place] < CERTAIN * (max(starts_s, _decoded_s(ahead, place)) + full_s)
                else:  # of decode a mean is known, which says little of one item: a picture is quick, an address slow
                    takes_s = ahead.run_s(there + place - first + 1) or 0.0
                    late[place] = left_s[place] < DOUBTFUL * (starts_s + takes_s)
        elif contended:
            _as_many_as_fit(left_s, places, there, ahead, late)
        first = end
    return late


def _as_many_as_fit(left_s: Sequence[float], places: Sequence[int], there: int, ahead: Ahead, late: list[bool]) -> None:
    """Of a batch that begins at once, give up those that the run of all of them would be too long for.

    All of a batch end together. So those with the most time are taken first, each lengthens the run, and the first
    for whom that is too long is the first that is given up.
    """
    by_time = sorted(places, key=lambda place: -left_s[place])
    for count, place in enumerate(by_time, 1):
        alone = there + count == 1
        takes_s = ahead.run_s(there + count) or 0.0
        if not alone and left_s[place] < CERTAIN * (_decoded_s(ahead, places[0] + count - 1) + takes_s):
            for other in by_time[count - 1 :]:
                late[other] = True
            return


def _decoded_s(ahead: Ahead, place: int) -> float:
    """When the item in that place leaves decode."""
    return ahead.decode_s * (ahead.decoding + place + 1)


class Forecast:
    """Knows what is under way in an engine, and what its stages cost.

    Args:
        stages: all of them.
        batchers: of those that run batches.
        pools: by name.
    """

    def __init__(
        self,
        stages: Sequence[EachStage | BatchStage],
        batchers: Mapping[BatchStage, Batcher[Task]],
        pools: Mapping[str, Pool],
    ) -> None:
        self._stages = stages
        self._batchers = batchers
        self._pools = pools
        self._ways: dict[Program, tuple[EachStage | None, BatchStage] | None] = {}

    def loads(self) -> list[Load]:
        """What each stage has done, and what an item costs it."""
        loads: list[Load] = []
        for stage in self._stages:
            if isinstance(stage, BatchStage):
                stats = self._batchers[stage].stats()
                loads.append(Load(stage.resource, len(stage.runs), stats.items, stats.each_s))
            else:
                cost = self._pools[stage.pool].cost(stage)
                threads = self._pools[stage.pool].size
                loads.append(Load(f"pool:{stage.pool}", threads, cost.items, cost.each_s))
        return loads

    def hopeless(self, works: Sequence[Work], *, contended: bool) -> list[Work]:
        """Those of new works that cannot be answered in time; see ``too_late``."""
        groups: dict[tuple[EachStage | None, BatchStage, Lane], list[Work]] = {}
        for work in works:
            way = self._way(work.program)
            if way is not None:
                groups.setdefault((*way, work.lane), []).append(work)
        now = time.monotonic()
        found: list[Work] = []
        for (prepare, stage, lane), mine in groups.items():
            late = too_late(
                [work.deadline - now for work in mine], self._ahead(prepare, stage, lane), contended=contended
            )
            found += [work for work, given_up in zip(mine, late, strict=True) if given_up]
        return found

    def _ahead(self, prepare: EachStage | None, stage: BatchStage, lane: Lane) -> Ahead:
        batcher = self._batchers[stage]
        outlook = batcher.outlook(lane)
        takers = len(stage.runs)
        decode_s = 0.0
        if prepare is not None:
            pool = self._pools[prepare.pool]
            cost = pool.cost(prepare)
            if cost.items >= SURE_ITEMS and cost.each_s is not None:
                decode_s = cost.each_s / pool.size
        return Ahead(
            # Of several takers one may be free though the last batch has only just begun.
            running_s=outlook.running_s if takers == 1 else 0.0,
            waiting=outlook.waiting + outlook.upstream,
            decoding=outlook.upstream,
            size=outlook.size,
            most=batcher.policy.max_batch_size,
            takers=takers,
            decode_s=decode_s,
            run_s=batcher.at_least,
        )

    def _way(self, program: Program) -> tuple[EachStage | None, BatchStage] | None:
        """What comes before the device, and the device's stage; None where a program has no such one or branches."""
        if program not in self._ways:
            self._ways[program] = _first_batch(program.first) if program.straight else None
        return self._ways[program]


def _first_batch(first: tuple[Step, ...]) -> tuple[EachStage | None, BatchStage] | None:
    prepare: EachStage | None = None
    steps = first
    while steps:
        stage = steps[0].stage
        if isinstance(stage, BatchStage):
            return None if stage.stores else (prepare, stage)
        prepare = stage if not steps[0].inline else prepare
        steps = steps[0].then
    return None
