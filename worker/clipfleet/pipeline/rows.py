"""Rows on their way through the steps of a program: who comes next when a step is done, and when it is all over.

Every change happens under the request's lock; what runs somebody's code (a generator of rows) is asked outside it.
The rows below a row are opened only as far as there is room in the process (``Room``), so that one request with a
million of them holds a few; and each group may always have one, so that everything ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clipfleet.pipeline.foreign import contained, unnoted
from clipfleet.pipeline.moves import Moves
from clipfleet.pipeline.room import Room
from clipfleet.pipeline.straight import go_along, take
from clipfleet.pipeline.work import Group, Row, Task, read, write
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.pipeline.engine.host import Host
    from clipfleet.pipeline.engine.leash import Leash
    from clipfleet.pipeline.program import Step
    from clipfleet.pipeline.work import Work

__all__ = ["Rows"]

_END = object()


class Rows:
    """Moves rows from step to step.

    Args:
        most: rows below requests that may be live at once.
        host: who runs the engine.
    """

    def __init__(self, most: int, host: Host) -> None:
        self._room = Room(most)
        self._host = host

    def begin(self, work: Work, mark: float, moves: Moves) -> None:
        """The first tasks of a request."""
        if work.program.straight:
            go_along(work, work.program.first, mark, moves)
            return
        work.row.pending = 1
        move = _Move(self._room, work, mark, moves)
        move.run(None, move.begin)

    def done(self, task: Task, value: Any, moves: Moves) -> None:
        """A task has its value."""
        if task.work.program.straight:
            take(task, value, moves)
            return
        move = _Move(self._room, task.work, task.mark, moves)
        move.run(task, move.apply, task.row, task.step, value)

    def drop(self, task: Task, moves: Moves) -> None:
        """A task will not be run: its request has its verdict."""
        if not task.work.program.straight:
            _Move(self._room, task.work, task.mark, moves).run(task)

    def pump(self, task: Task, leash: Leash, follow: Callable[[list[Task]], None]) -> Moves:
        """Open further rows of a task's group; its source may run somebody's code: call it on a pool.

        ``follow`` takes what is to be done for each row at once: the source may take its time for the next. It may
        also be endless, with no row that ever comes to a stage: so it is here that the deadline counts, and that a
        process which stops is noticed.

        Raises:
            GivenUp: the source took too long for one row; see ``abandon``.
        """
        group, work = task.group, task.work
        assert group is not None  # noqa: S101  (that is what such a task has)
        moves = Moves()
        move = _Move(self._room, work, task.mark, moves)
        with work.lock:
            if group.source is None or group.pumping:
                move.pass_on()
                return moves
            group.pumping = True
        while not self._host.stop.is_set():
            late = self._host.late(work)
            with work.lock:
                if late is not None:
                    move.fail(late)
                source = None if work.over else group.source
                if source is None:
                    move.finish(group)
                    return moves
                if not self._room.take(work, group):
                    group.pumping = False
                    return moves
                group.live += 1  # held for the row that is being made
            leash.begin((task,))
            try:
                value, error = contained(next, source, _END), None
            except Exception as raised:  # noqa: BLE001  (somebody's generator)
                value, error = _END, raised
            leash.end()
            with work.lock:
                if value is _END:
                    group.live -= 1
                    move.give()
                    move.finish(group, error)
                    return moves
                move.open(group, value)
            opened, moves.tasks = moves.tasks, []
            follow(opened)
        return moves

    def abandon(self, task: Task) -> Moves:
        """The source of a task's group never answered: its request has its verdict, and the rest goes without it."""
        group = task.group
        assert group is not None  # noqa: S101  (that is what such a task has)
        moves = Moves()
        move = _Move(self._room, task.work, task.mark, moves)
        with task.work.lock:
            group.live -= 1
            move.give()
            move.finish(group)
        return moves


class _Move:
    """One change to a request's rows, under its lock."""

    def __init__(self, room: Room, work: Work, mark: float, moves: Moves) -> None:
        self._room, self._work, self._mark, self._moves = room, work, mark, moves

    def run(self, task: Task | None, change: Callable[..., None] | None = None, *arguments: Any) -> None:
        """Do ``change``, then one thing less is under way for the task's row (the request's, without a task)."""
        row = self._work.row if task is None else task.row
        with self._work.lock:
            if task is not None:
                for place in task.step.frees:
                    row.values[place] = None
            if change is not None and not self._work.over:
                self._try(change, *arguments)
            if self._leave(row):
                self._end()

    def finish(self, group: Group, error: Exception | None = None) -> None:
        """No more rows come to a group."""
        if error is not None:
            self.fail(error)
        group.pumping = False
        group.source = None
        self.pass_on()
        if not group.live and self._close(group):
            self._end()

    def _end(self) -> None:
        """All is done; nothing ends twice."""
        if not self._work.over:
            self._work.over = True
            self._moves.ended.append(self._work)

    def _try(self, change: Callable[..., None], *arguments: Any) -> None:
        try:
            change(*arguments)
        except Exception as error:  # noqa: BLE001  (an inline step is somebody's code)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """The request is over; what is under way for it still has to come to its end, without doing anything."""
        if not self._work.over:
            self._work.over = True
            self._moves.broken.append((self._work, error))

    # Steps --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start with the request's own row."""
        for step in self._work.program.first:
            self._come(self._work.row, step)

    def _come(self, row: Row, step: Step) -> None:
        """A row has come to a step."""
        if step.waits_for > 1:
            if row.came is None:
                row.came = {}
            row.came[step.number] = came = row.came.get(step.number, 0) + 1
            if came < step.waits_for:
                return
        if step.does == "gather":
            assert row.group is not None  # noqa: S101  (the definition was checked for it)
            row.group.gathered.setdefault(step.number, []).append((row.index, read(row, step)))
        elif step.stage is None:
            self._go_on(row, step)
        elif step.inline:
            values = read(row, step)
            for place in step.frees:
                row.values[place] = None
            self.apply(row, step, unnoted(self._work, contained(step.stage.runs[0], *values)))
        else:
            row.pending += 1
            self._moves.tasks.append(Task(self._work, row, step, self._mark))

    def _go_on(self, row: Row, step: Step) -> None:
        for following in step.then:
            self._come(row, following)

    def apply(self, row: Row, step: Step, value: Any) -> None:
        """Do with a stage's value what the step is for."""
        if step.does == "map":
            write(row, step, value)
        elif step.does == "filter":
            if not value:
                return
        elif step.does == "flat_map":
            self._open_group(row, step, value)
            return
        self._go_on(row, step)

    # Rows below ---------------------------------------------------------------------------------------------------

    def _open_group(self, row: Row, step: Step, values: Any) -> None:
        try:
            source = iter(values)
        except TypeError:
            text = f"stage {step.name!r} gave {type(values).__name__} and no rows"
            raise error_for(ErrorCode.MODEL_FAILED, text) from None
        row.pending += 1
        self._continue(Group(row, step, source, lazy=not isinstance(values, list | tuple)))

    def _continue(self, group: Group) -> bool:
        """Open as many rows as there is room for; whether the request's own row is done with that."""
        if group.lazy and not self._work.over:
            self._moves.tasks.append(Task(self._work, group.row, group.step, self._mark, group))
            return False
        group.pumping = True
        while not self._work.over:
            assert group.source is not None  # noqa: S101  (a group without one is not continued)
            if not self._room.take(self._work, group):
                group.pumping = False
                return False
            value = next(group.source, _END)
            if value is _END:
                self.give()
                break
            group.live += 1
            self.open(group, value)
        group.pumping = False
        group.source = None
        return not group.live and self._close(group)

    def open(self, group: Group, value: Any) -> None:
        """One more row below, which is counted as live already."""
        row = Row([None] * self._work.program.size[group.row.depth + 1], group, group.count)
        group.count += 1
        row.pending = 1
        self._try(self._start, row, group.step, value)
        self._leave(row)

    def _start(self, row: Row, step: Step, value: Any) -> None:
        write(row, step, unnoted(self._work, value))
        self._go_on(row, step)

    def _close(self, group: Group) -> bool:
        """All rows of a group are done: what gathers them goes on in the row above."""
        for step in group.step.gathers:
            if not self._work.over:
                self._try(self._gather, group, step)
        return self._leave(group.row)

    def _gather(self, group: Group, step: Step) -> None:
        found = [values for _, values in sorted(group.gathered.pop(step.number, ()), key=lambda one: one[0])]
        for number, place in enumerate(step.writes):
            group.row.values[place] = [values[number] for values in found]
        self._go_on(group.row, step)

    def _leave(self, row: Row) -> bool:
        """One thing less is under way for a row; whether it was the request's own, and all is done."""
        row.pending -= 1
        if row.pending:
            return False
        group = row.group
        if group is None:
            return True
        group.live -= 1
        self.give()
        if group.live or group.pumping:
            return False
        return self._close(group) if group.source is None else self._continue(group)

    def give(self) -> None:
        """A row below has made room; a group of any request may go on, on the pool: it needs its own lock."""
        self._wake(self._room.give())

    def pass_on(self) -> None:
        """What was woken for room that it does not take; as ``give``."""
        self._wake(self._room.following())

    def _wake(self, waiting: tuple[Work, Group] | None) -> None:
        if waiting is not None:
            work, group = waiting
            self._moves.tasks.append(Task(work, group.row, group.step, self._mark, group))
