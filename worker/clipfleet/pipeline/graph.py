"""Walking the graph of a definition."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipfleet.pipeline.definition import Node

__all__ = ["ancestors", "borrowed", "ordered"]


def ancestors(head: Node) -> list[Node]:
    """``head`` and everything before it, parents before children; the input is first."""
    found: dict[Node, None] = {}
    open_nodes: list[tuple[Node, bool]] = [(head, False)]
    while open_nodes:
        node, visited = open_nodes.pop()
        if visited:
            found.setdefault(node)
        elif node not in found:
            open_nodes.append((node, True))
            open_nodes += [(parent, False) for parent in reversed(node.parents)]
    return list(found)


def borrowed(nodes: list[Node]) -> dict[Node, list[Node]]:
    """For each node that opens rows, what must have been done above it before: branches that its rows are joined with.

    A branch of the rows above has its columns in the row above, where the rows below see them; all it takes is that
    they are there before the rows are opened.
    """
    waits: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.kind == "concat":
            for parent in node.parents:
                if len(parent_scope(parent)) < len(node.scope):
                    waits.setdefault(node.scope[len(parent_scope(parent))], []).append(parent)
    return waits


def parent_scope(node: Node) -> tuple[Node, ...]:
    """The scope of the rows that come out of a node."""
    if node.kind == "flat_map":
        return (*node.scope, node)
    return node.scope[:-1] if node.kind == "gather" else node.scope


def ordered(head: Node) -> list[Node]:
    """All nodes so that each comes after all that it waits for.

    Raises:
        ValueError: two of them wait for each other; its text names them.
    """
    nodes = ancestors(head)
    waits = borrowed(nodes)
    sorter: TopologicalSorter[Node] = TopologicalSorter()
    for node in nodes:
        sorter.add(node, *node.parents, *waits.get(node, ()))
    try:
        return list(sorter.static_order())
    except CycleError as error:
        names = " -> ".join(node.name for node in error.args[1])
        raise ValueError(f"these wait for each other: {names}") from None
