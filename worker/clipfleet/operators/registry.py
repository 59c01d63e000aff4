"""The operators that are installed: ours and those of other packages, found by their entry points.

A package offers one by a line of its ``pyproject.toml``::

    [project.entry-points."clipfleet.operators"]
    blur = "my_package.blur:Blur"

The name is what ``clipfleet operators list`` shows and ``find`` takes; it should be the class's own ``name``. Nothing
is fetched nor installed here: what is there was put there by whoever runs this process.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from clipfleet.operators.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GROUP", "OURS", "ListedOperator", "find", "listed"]

GROUP = "clipfleet.operators"
OURS = "clipfleet"


@dataclass(frozen=True, slots=True)
class ListedOperator:
    """An operator by its entry point.

    Attributes:
        name: by which it is found.
        target: ``module:Class``.
        package: the distribution that brings it.
        version: of the package.
        operator: the class; None where there is a problem.
        problem: why it cannot be used; empty when it can.
    """

    name: str
    target: str
    package: str
    version: str
    operator: type[Operator] | None = None
    problem: str = ""


def listed() -> list[ListedOperator]:
    """All of them by name. One that cannot be loaded has a ``problem``, and does not keep the others from being seen.

    This imports every package that offers one.
    """
    return _listed(_entry_points())


def find(name: str) -> type[Operator]:
    """The operator of that name; no other package is imported.

    Raises:
        ValueError: there is none, or it cannot be used; the text says why.
    """
    found = _listed([point for point in _entry_points() if point.name == name])
    if not found:
        names = sorted({point.name for point in _entry_points()})
        near = difflib.get_close_matches(name, names, n=1)
        raise ValueError(
            f"no operator {name!r} is installed"
            + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}")
        )
    usable = [each for each in found if each.operator is not None]
    if not usable or usable[0].operator is None:
        raise ValueError(f"operator {name!r} of {found[0].package} cannot be used: {found[0].problem}")
    return usable[0].operator


def _entry_points() -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, not _is_ours(point), point.value))


def _listed(points: Iterable[metadata.EntryPoint]) -> list[ListedOperator]:
    taken: dict[str, str] = {}
    found = []
    for point in points:
        package, version = (point.dist.name, point.dist.version) if point.dist is not None else ("?", "?")
        operator, problem = None, ""
        if point.name in taken:
            # By any other rule a package could put itself in another's place.
            problem = f"{taken[point.name]} has an operator of this name too"
        else:
            operator, problem = _load(point)
            taken[point.name] = package
        found.append(ListedOperator(point.name, point.value, package, version, operator, problem))
    return found


def _load(point: metadata.EntryPoint) -> tuple[type[Operator] | None, str]:
    try:
        loaded = point.load()
        name, task = getattr(loaded, "name", None), getattr(loaded, "task", None)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a stranger's module may raise anything as it is imported
        return None, f"{type(error).__name__}: {error}"
    if not (isinstance(loaded, type) and issubclass(loaded, Operator)):
        return None, f"{point.value} is no subclass of clipfleet.operators.Operator"
    if name != point.name or not isinstance(task, str):
        return None, f"{point.value} calls itself {name!r}" + (
            "" if isinstance(task, str) else ", and its task no text"
        )
    return loaded, ""


def _is_ours(point: metadata.EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == OURS
