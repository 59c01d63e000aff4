"""What became of one request: its values through each step."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clipfleet.pipeline.observer import Observer
from clipfleet.pipeline.values import brief

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Trace", "TraceLine"]

_MOST_LINES: Final = 10_000


@dataclass(frozen=True, slots=True)
class TraceLine:
    """What one step did for one row, in short.

    Attributes:
        step: its name.
        row: the row's number below each ``flat_map``.
        inputs: what it was given.
        value: what it made, or how it failed.
    """

    step: str
    row: tuple[int, ...]
    inputs: tuple[str, ...]
    value: str


class Trace(Observer):
    """The values of one request through each step, in short: nothing large is kept alive.

    Attributes:
        request_id: the request; where a pipeline runs in this process, the number of the call, from 1.
    """

    values = True

    def __init__(self, request_id: str = "") -> None:
        self.request_id = request_id
        self._lines: list[TraceLine] = []
        self._left_out = 0
        self._lock = threading.Lock()

    def made(self, request_id: str, step: str, row: tuple[int, ...], inputs: Sequence[Any], value: Any) -> None:
        """Note what was made, if it is for this request."""
        if request_id != self.request_id:
            return
        line = TraceLine(step, row, tuple(brief(each, 40) for each in inputs), brief(value))
        with self._lock:
            if len(self._lines) < _MOST_LINES:
                self._lines.append(line)
            else:
                self._left_out += 1

    @property
    def lines(self) -> list[TraceLine]:
        """What was noted: step by step in the order in which steps began, and each by its rows."""
        with self._lock:
            lines = list(self._lines)
        order = {step: number for number, step in enumerate(dict.fromkeys(line.step for line in lines))}
        return sorted(lines, key=lambda line: (order[line.step], line.row))

    def text(self) -> str:
        """As lines: the step, its row, what went in and what came out."""
        rows = [
            (f"{line.step}{''.join(f'[{n}]' for n in line.row)}", ", ".join(line.inputs), f"→ {line.value}")
            for line in self.lines
        ]
        more = f"… {self._left_out} more\n" if self._left_out else ""
        return _aligned(rows) + more


def _aligned(rows: Iterable[tuple[str, ...]]) -> str:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
