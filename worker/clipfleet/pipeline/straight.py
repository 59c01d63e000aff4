"""Requests whose steps follow each other in one line: most of them, and nothing has to be counted for them.

Of such a request one step at a time is under way, held by one thread, so its row needs no lock; only who ends it
must be the first to do so (``Work.claim``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clipfleet.pipeline.foreign import contained, unnoted
from clipfleet.pipeline.work import Task, write

if TYPE_CHECKING:
    from clipfleet.pipeline.moves import Moves
    from clipfleet.pipeline.program import Step
    from clipfleet.pipeline.work import Work

__all__ = ["go_along", "is_straight", "take"]


def is_straight(first: tuple[Step, ...]) -> bool:
    """Whether the steps from ``first`` on are one line over the request's own row."""
    steps = first
    while steps:
        step = steps[0]
        local = step.local is not None and step.stage is not None
        if len(steps) > 1 or step.waits_for != 1 or step.does not in {"map", "sink"} or not local:
            return False
        steps = step.then
    return True


def take(task: Task, value: Any, moves: Moves) -> None:
    """A task has its value: go on behind it."""
    work, step = task.work, task.step
    values = task.row.values
    for place in step.frees:
        values[place] = None
    if work.over:
        return
    if step.does == "map":
        try:
            write(task.row, step, value)
        except Exception as error:  # noqa: BLE001  (values of somebody's code, of another number than its columns)
            _break(work, error, moves)
            return
    before = len(moves.tasks)
    go_along(work, step.then, task.mark, moves)
    if task.ticket is not None and len(moves.tasks) > before:
        # What was announced while this was prepared is what comes next (only then there is a ticket).
        moves.tasks[-1].ticket, task.ticket = task.ticket, None


def go_along(work: Work, then: tuple[Step, ...], mark: float, moves: Moves) -> None:
    """Do inline steps up to the one that needs a thread of its own, or to the end."""
    row = work.row
    values = row.values
    while then:
        step = then[0]
        stage = step.stage
        if stage is None or not step.inline:
            moves.tasks.append(Task(work, row, step, mark))
            return
        given = [values[place] for place in step.local or ()]
        for place in step.frees:
            values[place] = None
        if step.packs:
            values[step.writes[0]] = [given]
        else:
            try:
                value = unnoted(work, contained(stage.runs[0], *given))
                if step.does == "map":
                    write(row, step, value)
            except Exception as error:  # noqa: BLE001  (an inline step is somebody's code)
                _break(work, error, moves)
                return
        then = step.then
    if work.claim():
        moves.ended.append(work)


def _break(work: Work, error: Exception, moves: Moves) -> None:
    if work.claim():
        moves.broken.append((work, error))
