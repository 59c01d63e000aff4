"""Which files a pipeline's module needs: its own, those it imports, and the installed packages behind the rest.

Read from the source and not from what happens to be imported: an import inside a function counts too, and the answer
is the same each time.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import sysconfig
from collections import deque
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from importlib.machinery import ModuleSpec

__all__ = ["Modules", "Taken", "is_installed", "trace"]

_OURS = "clipfleet"
_PACKAGES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib"))
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True, slots=True)
class Taken:
    """A module file or a package folder that nobody installed.

    Attributes:
        root: the folder that it is imported from.
        path: the file, or the folder with all that is in it.
    """

    root: Path
    path: Path


@dataclass(slots=True)
class Modules:
    """What was found.

    Attributes:
        taken: by top-level name.
        distributions: names of installed ones.
    """

    taken: dict[str, Taken] = field(default_factory=dict)
    distributions: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Import:
    name: str
    optional: bool = False


def is_installed(path: Path) -> bool:
    """Whether a file belongs to an installed package (or to Python)."""
    return any(path.is_relative_to(folder) for folder in _PACKAGES)


def trace(names: Iterable[str]) -> Modules:
    """Follow the modules ``names`` and what they import, as far as nobody installed it.

    Raises:
        CliError: a module is imported that is not here.
    """
    found = Modules()
    waiting = deque((_Import(name), "the pipeline") for name in names)
    seen: set[str] = set()
    while waiting:
        each, who = waiting.popleft()
        if each.name in seen:
            continue
        seen.add(each.name)
        top = each.name.partition(".")[0]
        if top in sys.stdlib_module_names or top == _OURS:
            continue
        spec = _spec(top)
        if spec is None:
            if each.optional:
                continue
            raise CliError(f"{who} imports {each.name}, which is not installed here")
        if any(is_installed(place) for place in _places(spec)) and top in _distributions():
            found.distributions.update(_distributions()[top])
            continue
        taken = found.taken.setdefault(top, _taken(spec, top))
        for file in _files(taken.root, each.name):
            waiting.extend((one, str(file)) for one in _imports(file, taken.root))
    return found


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: __main__ and the like have none
        return None


def _places(spec: ModuleSpec) -> list[Path]:
    if spec.submodule_search_locations is not None:
        return [Path(place).resolve() for place in spec.submodule_search_locations]
    return [Path(spec.origin).resolve()] if spec.origin and spec.has_location else []


def _taken(spec: ModuleSpec, top: str) -> Taken:
    places = _places(spec)
    if not places or not places[0].exists():
        raise CliError(f"{top} is in no file that could be shipped")
    return Taken(places[0].parent, places[0])


def _files(root: Path, name: str) -> Iterator[Path]:
    """The source files that importing ``name`` runs: its packages', from the outside in, and its own."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:count])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                yield file


def _imports(file: Path, root: Path) -> Iterator[_Import]:
    """What a file imports, wherever in it: modules by their full names, and names that may be modules."""
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except SyntaxError as error:
        raise CliError(f"{file}: {error}") from error
    package = file.relative_to(root).parent.parts
    for node, optional in _walk(tree, optional=False):
        if isinstance(node, ast.Import):
            yield from (_Import(alias.name, optional) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (_Import(f"{base}.{alias.name}".strip("."), optional) for alias in node.names)


def _walk(node: ast.AST, *, optional: bool) -> Iterator[tuple[ast.AST, bool]]:
    yield node, optional
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        if isinstance(node, ast.If) and name == "body" and _is_for_types(node.test):
            continue
        may_fail = optional or (isinstance(node, ast.Try) and name == "body" and _catches_import(node))
        for child in children:
            if isinstance(child, ast.AST):
                yield from _walk(child, optional=may_fail)


def _is_for_types(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in {getattr(test, "id", None), getattr(test, "attr", None)}


def _catches_import(node: ast.Try) -> bool:
    caught: list[ast.expr | None] = []
    for handler in node.handlers:
        caught.extend(handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    return any(one is None or getattr(one, "id", None) in _IMPORT_ERRORS for one in caught)
