"""A layered layout of a directed graph: each node below all that it follows, few crossings, straight chains.

Sugiyama, Tagawa and Toda's method ("Methods for Visual Understanding of Hierarchical System Structures", 1981) in its
plainest form: layers by the longest path, edges across layers through points of their own, order by barycentre. Enough
for the tens of steps of a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Box", "Layout", "lay_out"]

_SWEEPS: Final = 8
_GAP_X: Final = 40.0
_GAP_Y: Final = 46.0


@dataclass(slots=True)
class Box:
    """Where a node stands; a point of an edge has no size.

    Attributes:
        x: its middle.
        y: its top.
        width: of it.
        height: of it.
        layer: 0 is at the top.
    """

    width: float
    height: float
    layer: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The result.

    Attributes:
        boxes: one for each node, in the order given.
        edges: one for each edge, in the order given: the boxes that it goes through, both ends included.
        width: of all.
        height: of all.
    """

    boxes: list[Box]
    edges: list[list[Box]]
    width: float
    height: float


class _Graph:
    """The nodes and the points of long edges, by layer."""

    def __init__(self, sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> None:
        self.boxes = [Box(*size) for size in sizes]
        self.above: dict[int, list[Box]] = {}
        self.below: dict[int, list[Box]] = {}
        # Nodes come in topological order, so that one pass settles the longest paths.
        for above, below in sorted(edges, key=lambda edge: edge[1]):
            self.boxes[below].layer = max(self.boxes[below].layer, self.boxes[above].layer + 1)
        self.layers: list[list[Box]] = [[] for _ in range(1 + max(box.layer for box in self.boxes))]
        for box in self.boxes:
            self.layers[box.layer].append(box)
        self.paths = [self._path(self.boxes[above], self.boxes[below]) for above, below in edges]

    def _path(self, above: Box, below: Box) -> list[Box]:
        points = [Box(0.0, 0.0, layer) for layer in range(above.layer + 1, below.layer)]
        for point in points:
            self.layers[point.layer].append(point)
        path = [above, *points, below]
        for upper, lower in pairwise(path):
            self.below.setdefault(id(upper), []).append(lower)
            self.above.setdefault(id(lower), []).append(upper)
        return path


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place nodes of these (width, height), joined by edges of (number above, number below).

    Args:
        sizes: of each node, in topological order.
        edges: by the nodes' numbers.
    """
    graph = _Graph(sizes, edges)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = graph.above if down else graph.below
        for layer in graph.layers if down else reversed(graph.layers):
            if sweep < _SWEEPS // 2:
                _order(layer, neighbours, graph)
            _place(layer, neighbours)
    left = min(box.x - box.width / 2 for layer in graph.layers for box in layer)
    top = 0.0
    for layer in graph.layers:
        tallest = max(box.height for box in layer)
        for box in layer:
            box.x -= left
            box.y = top + (tallest - box.height) / 2
        top += tallest + _GAP_Y
    right = max(box.x + box.width / 2 for layer in graph.layers for box in layer)
    return Layout(graph.boxes, graph.paths, right, top - _GAP_Y)


def _order(layer: list[Box], neighbours: dict[int, list[Box]], graph: _Graph) -> None:
    places = {id(box): place for each in graph.layers for place, box in enumerate(each)}

    def middle(box: Box) -> float:
        near = neighbours.get(id(box), [])
        return sum(places[id(one)] for one in near) / len(near) if near else places[id(box)]

    layer.sort(key=middle)


def _place(layer: list[Box], neighbours: dict[int, list[Box]]) -> None:
    """Each as near as there is room to the middle of its neighbours, the order kept."""
    wanted = []
    for box in layer:
        near = neighbours.get(id(box), [])
        wanted.append(sum(one.x for one in near) / len(near) if near else box.x)
    for place, box in enumerate(layer):
        box.x = wanted[place]
        if place:
            last = layer[place - 1]
            box.x = max(box.x, last.x + (last.width + box.width) / 2 + _GAP_X)
    # What was pushed was pushed to the right: halve it.
    shift = sum(box.x - want for box, want in zip(layer, wanted, strict=True)) / len(layer)
    for box in layer:
        box.x -= shift
