"""Drawings of a pipeline: for the terminal, and as SVG.

In the terminal each step is a line, as in ``git log --graph``: a branch leaves the lane of what it continues, a join
is where lanes meet, and steps on rows below a ``flat_map`` stand further right::

    ○ input                   → image
    ○ decode        map       image → pixels
    ○ detect        flat_map  pixels → box, label       1:n · batch ≤ 8
    ○   crop        map       pixels, box → crop
    ○   clip_image  map       crop → vector             batched
    ◉   output                label, vector
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.pipeline.steps import steps_of
from clipfleet.pipeline.svg import draw_svg
from clipfleet.schemas.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.pipeline import Pipeline
    from clipfleet.pipeline.steps import Step

__all__ = ["draw_svg", "draw_text"]

_MOST_NAMES: Final = 5
# By what goes up, down, left and right from the crossing.
_JOINTS: Final = {
    "ud": "│", "lr": "─", "udr": "├", "udl": "┤", "udlr": "┼", "ul": "╯", "ur": "╰", "dl": "╮", "dr": "╭",
    "ulr": "┴", "dlr": "┬",
}  # fmt: skip


def draw_text(pipeline: Pipeline) -> str:
    """The pipeline in box-drawing characters, lines ended by a newline."""
    parts = [(name, one) for name, one in pipeline.variants().items()]
    drawn = [_draw(steps_of(one)) for _, one in parts]
    if len(parts) == 1:
        return drawn[0]
    return "\n".join(f"given {name}:\n{text}" for (name, _), text in zip(parts, drawn, strict=True))


def _draw(steps: Sequence[Step]) -> str:
    lanes = _Lanes(steps)
    graph = [lanes.add(number) for number in range(len(steps))]
    wide = max(len(line) for lines in graph for line in lines)
    names = ["  " * step.depth + visible(step.name) for step in steps]
    widths = [
        max(map(len, names)),
        max(len(_method(step)) for step in steps),
        max(len(_columns(step)) for step in steps),
    ]
    text = ""
    for (joint, line), name, step in zip(graph, names, steps, strict=True):
        said = map(str.ljust, (name, _method(step), _columns(step)), widths)
        notes = " · ".join([*([step.rows] if step.rows else []), *step.notes])
        text += f"{joint}\n" if joint else ""
        text += f"{line.ljust(wide)} {'  '.join([*said, notes])}".rstrip() + "\n"
    return text


def _method(step: Step) -> str:
    return "" if step.label == step.name else step.label


def _columns(step: Step) -> str:
    reads, writes = (_few(names) for names in (step.reads, step.writes))
    return f"{reads} → {writes}".strip() if writes else reads


def _few(names: Sequence[str]) -> str:
    shown = [visible(name) for name in (names if len(names) <= _MOST_NAMES else names[: _MOST_NAMES - 1])]
    return ", ".join([*shown, f"… {len(names) - len(shown)} more"] if len(shown) < len(names) else shown)


class _Lanes:
    """The lanes of the drawing: each belongs to a step that something below still continues."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._lanes: list[int | None] = []
        self._children = [0] * len(steps)
        for step in steps:
            for parent in step.parents:
                self._children[parent] += 1

    def add(self, number: int) -> tuple[str, str]:
        """The line above a step (empty where nothing turns) and its own."""
        before = list(self._lanes)
        sources = [self._lanes.index(parent) for parent in self._steps[number].parents]
        for lane in sources:
            parent = self._lanes[lane]
            if parent is not None:
                self._children[parent] -= 1
                if not self._children[parent]:
                    self._lanes[lane] = None
        ended = [lane for lane in sources if self._lanes[lane] is None]
        place = min(ended) if ended else self._free()
        self._lanes[place] = number
        joint = self._joint(before, {*sources, place}, sources) if sources and {*sources} != {place} else ""
        mark = "○" if self._children[number] else "◉"
        line = " ".join(mark if lane == place else " " if at is None else "│" for lane, at in enumerate(self._lanes))
        if not self._children[number]:
            self._lanes[place] = None
        return joint, line

    def _free(self) -> int:
        if None not in self._lanes:
            self._lanes.append(None)
        return self._lanes.index(None)

    def _joint(self, before: list[int | None], turning: set[int], sources: list[int]) -> str:
        low, high = min(turning), max(turning)
        text = ""
        for lane, now in enumerate(self._lanes):
            up = lane < len(before) and before[lane] is not None and (lane not in turning or lane in sources)
            inside = low <= lane <= high
            if inside and lane not in turning and up:
                arms = "ud"  # a lane that has no part in it passes in front
            else:
                arms = "u" * up + "d" * (now is not None)
                arms += "l" * (low < lane <= high) + "r" * (low <= lane < high)
            text += _JOINTS.get(arms, " ") + ("─" if low <= lane < high else " ")
        return text.rstrip()
