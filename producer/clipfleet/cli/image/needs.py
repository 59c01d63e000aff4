"""What a pipeline's stages name: files, models, and the modules that they were defined in."""

from __future__ import annotations

import dataclasses
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipfleet.cli.errors import CliError

if TYPE_CHECKING:
    from clipfleet.pipeline import Pipeline

__all__ = ["Needs", "needs_of"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be in the image besides the pipeline's own module.

    Attributes:
        modules: where stages were defined, sorted.
        files: as the operators name them: their fields that are paths, or are called ``file`` or ``…_file``; any other
            text that is a file's name, too.
        models: likewise, fields called ``model``.
    """

    modules: tuple[str, ...]
    files: tuple[Path, ...]
    models: tuple[str, ...]


def needs_of(pipeline: Pipeline) -> Needs:
    """Look through the stages.

    Raises:
        CliError: a stage's function exists in this process alone.
    """
    from clipfleet.operators.operator import Operator  # noqa: PLC0415  needs the [worker] extra

    modules: set[str] = set()
    files: set[Path] = set()
    models: set[str] = set()
    for node in pipeline.nodes:
        if node.does is None:
            continue
        if isinstance(node.does, Operator):
            modules.add(type(node.does).__module__)
            for name, value in _fields(node.does):
                if callable(value):
                    modules.add(_home(f"{node.label} {node.name!r}", value))
                elif name == "model":
                    models.add(os.fspath(value))
                elif _names_file(name, value):
                    files.add(Path(value))
        else:
            modules.add(_home(f"{node.label} {node.name!r}", node.does))
    if "__main__" in modules:
        raise CliError("a stage was defined in __main__, which has no name to import it by in an image")
    return Needs(tuple(sorted(modules)), tuple(sorted(files)), tuple(sorted(models)))


def _fields(operator: Any) -> list[tuple[str, Any]]:
    """Those that may name something: texts, paths and functions."""
    if not dataclasses.is_dataclass(operator):
        return []
    named = [(each.name, getattr(operator, each.name)) for each in dataclasses.fields(operator)]
    return [(name, value) for name, value in named if isinstance(value, str | os.PathLike) or callable(value)]


def _names_file(name: str, value: str | os.PathLike[str]) -> bool:
    if isinstance(value, os.PathLike) or name == "file" or name.endswith("_file"):
        return True
    return bool(value) and "\0" not in value and len(value) < 256 and Path(value).is_file()


def _home(stage: str, function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    module = getattr(function, "__module__", None) or type(function).__module__
    code = getattr(function, "__code__", None)
    if code is not None and module != "__main__" and not Path(code.co_filename).is_file():
        raise CliError(
            f"{stage}: its function was made in {code.co_filename}, which is no file",
            hint="Write it in the module, as a function or a lambda.",
        )
    return str(module)
