"""One request on its way, its rows, and one step of one row."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.batching import Lane
    from clipfleet.pipeline.program import Program, Step
    from clipfleet.schemas.request import Request

__all__ = ["Group", "Row", "Task", "Work", "read", "write"]


class Row:
    """Values of one row, by place.

    Attributes:
        values: by place; freed when nobody reads them any more.
        group: the rows it is one of; None for the request's own.
        index: its number among them.
        depth: 0 for the request's own, 1 below it, and so on.
        pending: steps of it that are under way, and groups below it that are open.
        came: by step, how many of those it waits for have come here.
    """

    __slots__ = ("came", "depth", "group", "index", "pending", "values")

    def __init__(self, values: list[Any], group: Group | None = None, index: int = 0) -> None:
        self.values = values
        self.group = group
        self.index = index
        self.depth: int = 0 if group is None else group.row.depth + 1
        self.pending = 0
        self.came: dict[int, int] | None = None

    @property
    def path(self) -> tuple[int, ...]:
        """Its number among its siblings, and theirs above it, from the outside in; empty for the request's own."""
        return () if self.group is None else (*self.group.row.path, self.index)


class Group:
    """The rows that one row opened.

    Attributes:
        row: the one above.
        step: that opened them.
        source: where the next ones come from; None when there are no more.
        lazy: whether asking it for one runs somebody's code.
        count: rows so far.
        live: rows that are not done.
        gathered: by gathering step, the number and the values of each row that came to it.
        pumping: whether somebody is asking the source right now.
        starved: whether it waits for room; the ``Room``'s own.
    """

    __slots__ = ("count", "gathered", "lazy", "live", "pumping", "row", "source", "starved", "step")

    def __init__(self, row: Row, step: Step, source: Iterator[Any], *, lazy: bool) -> None:
        self.row = row
        self.step = step
        self.source: Iterator[Any] | None = source
        self.lazy = lazy
        self.count = 0
        self.live = 0
        self.gathered: dict[int, list[tuple[int, list[Any]]]] = {}
        self.pumping = False
        self.starved = False


class Work:
    """A request in this process.

    Attributes:
        request: what was asked.
        program: which steps it takes.
        entry: what the caller of the engine knows it by: a worker's lease on it.
        enqueued_at: monotonic seconds from which its age counts.
        deadline: monotonic seconds after which nobody waits for it.
        lane: whose items go first.
        row: its own row.
        over: whether it has its verdict: what is still under way for it is dropped.
        stored: whether it has been told to the host that it waits for the store.
        notes: for the result: ``truncated`` and the like.
        timing: milliseconds by name, for the result.
        lock: around its rows, where several stages may be at work for it at once, and around its claim.
    """

    __slots__ = (
        "deadline",
        "enqueued_at",
        "entry",
        "lane",
        "lock",
        "notes",
        "over",
        "program",
        "request",
        "row",
        "stored",
        "timing",
    )

    def __init__(
        self,
        request: Request,
        program: Program,
        entry: Any,
        *,
        enqueued_at: float,
        deadline: float,
        lane: Lane,
        values: list[Any],
    ) -> None:
        self.request = request
        self.program = program
        self.entry = entry
        self.enqueued_at = enqueued_at
        self.deadline = deadline
        self.lane = lane
        self.row = Row(values)
        self.over = False
        self.stored = False
        self.notes: dict[str, Any] = {}
        self.timing: dict[str, float] = {}
        # Where one thread at a time holds it, nothing is done under the lock but the claim itself.
        self.lock = program.claims if program.straight else threading.Lock()

    def claim(self) -> bool:
        """Have the last word about it; False if somebody had it before."""
        with self.lock:
            first, self.over = not self.over, True
        return first


class Task:
    """One step of one row, waiting for its stage or in it.

    Attributes:
        work: the request it belongs to.
        row: what it reads and writes.
        step: what is to be done; None: the rows of ``group`` are to be continued.
        group: see ``step``.
        came: when it could first have been done (monotonic, s).
        mark: when the last thing happened to it, likewise.
        ticket: announced place in a batch, while it is prepared.
    """

    __slots__ = ("came", "group", "mark", "row", "step", "ticket", "work")

    def __init__(self, work: Work, row: Row, step: Step, mark: float, group: Group | None = None) -> None:
        self.work = work
        self.row = row
        self.step = step
        self.came = self.mark = mark
        self.group = group
        self.ticket: int | None = None

    def inputs(self) -> list[Any]:
        """The values of the step's input columns."""
        row, local = self.row, self.step.local
        if local is not None:
            values = row.values
            return [values[place] for place in local]
        return read(row, self.step)

    def lap(self, name: str) -> None:
        """Book the time since the last mark under ``name``, for the request's own row: its steps follow each other."""
        now = time.monotonic()
        if self.row.group is None:
            timing = self.work.timing
            # Whole microseconds: rounding a float costs three times as much, and this is done for each step.
            micros = int((now - self.mark) * 1e6)
            timing[name] = (micros + int(timing[name] * 1e3 + 0.5) if name in timing else micros) / 1e3
        self.mark = now


def read(row: Row, step: Step) -> list[Any]:
    """The values of a step's input columns, some of them in rows above."""
    found = []
    for up, place in step.reads:
        holder = row
        for _ in range(up):
            assert holder.group is not None  # noqa: S101  (the definition was checked for it)
            holder = holder.group.row
        found.append(holder.values[place])
    return found


def write(row: Row, step: Step, value: Any) -> None:
    """Put a step's value where its columns are.

    Raises:
        ModelFailed: as many values as it has columns were expected.
    """
    places = step.writes
    if len(places) == 1:
        row.values[places[0]] = value
        return
    found = tuple(value) if isinstance(value, tuple | list) else (value,)
    if places and len(found) != len(places):
        text = f"stage {step.name!r} gave {counted(len(found), 'value')} for {counted(len(places), 'column')}"
        raise error_for(ErrorCode.MODEL_FAILED, text)
    for place, one in zip(places, found, strict=bool(places)):
        row.values[place] = one
