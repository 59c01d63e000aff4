"""A flame graph of what py-spy has seen, as an SVG that needs no script and names no folder of the machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Stack = tuple[str, ...]

WIDTH, ROW, HEAD, FOOT = 1200, 16, 40, 8
FONT = 'font-family="monospace" font-size="10"'
CHARACTER = 6.2  # pixels of one, at the size of the text
LEAST = 0.003  # of all samples: what is narrower is not drawn, so that the file stays small
OURS, LIBRARY, RUNTIME = "#f0a35e", "#9db8d9", "#d5d5d5"
PORTIONS = "batching|cli|index|models|operators|pipeline|producer|schemas|store|tasks|worker"
_OURS = re.compile(rf"\((?:clipfleet/)?(?:{PORTIONS})/")
_PLACE = re.compile(r" \((?P<file>.*?)(?::\d+)?\)$")
_RUNTIME = re.compile(
    r"\((?:<frozen|threading\.py|asyncio/|selectors\.py|concurrent/|contextlib\.py|socket\.py|queue\.py)"
)


def frame(text: str) -> str:
    """A frame without its line, so that one function is one box, and without the folders above its package."""
    found = _PLACE.search(text)
    if found is None:
        return text
    file = found["file"]
    for mark in ("/site-packages/", "/dist-packages/"):
        _, at, below = file.rpartition(mark)
        file = below if at else file
    if file.startswith("/"):
        file = file.rpartition("/")[2]
    return f"{text[: found.start()]} ({file})"


def is_ours(name: str) -> bool:
    """Whether the frame is clipfleet's."""
    return _OURS.search(name) is not None


@dataclass(slots=True)
class Box:
    """A function and what it called.

    Attributes:
        samples: in which it was on the stack.
        called: by name, in the order of their first sample.
    """

    samples: int = 0
    called: dict[str, Box] = field(default_factory=dict)

    @classmethod
    def of(cls, stacks: Mapping[Stack, int]) -> Box:
        """The tree of all stacks, each as (outermost, ..., innermost)."""
        root = cls()
        for stack, samples in stacks.items():
            root.samples += samples
            at = root
            for name in stack:
                at = at.called.setdefault(name, cls())
                at.samples += samples
        return root

    def depth(self, least: float) -> int:
        """Rows of what is called from here, as far as it has at least so many samples."""
        return max((1 + box.depth(least) for box in self.called.values() if box.samples >= least), default=0)


def draw(title: str, stacks: Mapping[Stack, int]) -> str:
    """The picture: the outermost function below, what it calls above it, each as wide as its share of the samples.

    Raises:
        ValueError: there is not one sample.
    """
    root = Box.of(stacks)
    if not root.samples:
        raise ValueError("no samples")
    least = root.samples * LEAST
    height = HEAD + root.depth(least) * ROW + FOOT
    rows: list[str] = []
    _boxes(root, 0.0, height - FOOT - ROW, root.samples, rows)
    size = f'width="{WIDTH}" height="{height}"'
    told = (
        f"{root.samples:,} samples; orange: clipfleet, blue: libraries, grey: Python's own; "
        f"narrower than {LEAST:.1%} is not drawn"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} {FONT}>',
        f'<rect {size} fill="#ffffff"/>',
        f'<text x="8" y="16" font-size="13">{escape(title)}</text>',
        f'<text x="8" y="31" fill="#555555">{escape(told)}</text>',
    )
    return "\n".join([*head, *rows, "</svg>", ""])


def _boxes(above: Box, left: float, top: float, total: int, rows: list[str]) -> None:
    for name, box in sorted(above.called.items()):
        width = box.samples / total * WIDTH
        if box.samples >= total * LEAST:
            rows.append(_rectangle(name, box.samples / total, left, top, width))
            _boxes(box, left, top - ROW, total, rows)
        left += width


def _rectangle(name: str, share: float, left: float, top: float, width: float) -> str:
    colour = OURS if is_ours(name) else RUNTIME if _RUNTIME.search(name) else LIBRARY
    letters = int((width - 4) / CHARACTER)
    text = f'<text x="{left + 2:.1f}" y="{top + 11:.0f}">{escape(name[:letters])}</text>' if letters > 2 else ""
    size = f'width="{max(width - 0.5, 0.3):.1f}" height="{ROW - 1}"'
    box = f'<rect x="{left:.1f}" y="{top:.0f}" {size} fill="{colour}"/>'
    return f"<g><title>{escape(name)} {share:.1%}</title>{box}{text}</g>"


def busiest(stacks: Mapping[Stack, int], most: int = 12) -> list[tuple[str, float]]:
    """The functions in which most samples ended, each with its share of them all."""
    own: dict[str, int] = {}
    for stack, samples in stacks.items():
        own[stack[-1]] = own.get(stack[-1], 0) + samples
    total = sum(own.values()) or 1
    return [(name, count / total) for name, count in sorted(own.items(), key=lambda one: (-one[1], one[0]))[:most]]


def folded(rows: Iterable[str]) -> list[tuple[str, Stack, int]]:
    """What py-spy's raw form says, line by line: the command of the innermost process, its stack, samples."""
    found = []
    for row in rows:
        words, _, count = row.rstrip("\n").rpartition(" ")
        frames = words.split(";")
        command = ""
        while frames and (process := re.match(r'process \d+:"(.*)"?', frames[0])):
            command = process[1].rstrip('"')
            del frames[0]
        if command and frames:
            found.append((command, tuple(map(frame, frames)), int(count)))
    return found
