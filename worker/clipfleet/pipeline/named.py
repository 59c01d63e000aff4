"""Pipelines by ``module:name``, as a command line names them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipfleet.pipeline.pipeline import Pipeline
from clipfleet.schemas.keys import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["load_pipeline", "load_pipelines"]


def load_pipelines(paths: Sequence[str], taken: Iterable[str] = ()) -> dict[str, Pipeline]:
    """Pipelines by the name that requests call them by: the attribute's, or what stands before ``=``.

    Raises:
        ImportError: there is no such module or pipeline; the text says what there is.
        ValueError: a name that no request can have, or one that is taken.
    """
    found: dict[str, Pipeline] = {}
    for path in paths:
        given, _, target = path.rpartition("=")
        name = given or target.rpartition(":")[2].rpartition(".")[2]
        if not NAME.match(name):
            raise ValueError(f"{name!r} is no name for a pipeline; it matches [A-Za-z0-9_.-]{{1,64}}")
        if name in found or name in set(taken):
            raise ValueError(f"there is a pipeline {name!r} already; give it another one: NAME={target}")
        found[name] = load_pipeline(target)
    return found


def load_pipeline(path: str) -> Pipeline:
    """The pipeline at ``module:name``; the current folder is looked in first.

    Raises:
        ImportError: there is no such module or pipeline; the text says what there is.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ImportError(f"{path!r} names no pipeline; write module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = importlib.import_module(module_name)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Pipeline):
        there = ", ".join(sorted(name for name, value in vars(module).items() if isinstance(value, Pipeline)))
        raise ImportError(  # noqa: TRY004  (a wrong setting)
            f"{module_name} has no pipeline {attribute!r}; it has {there or 'none'}"
        )
    if found.name.startswith("pipeline-"):
        found.name = attribute
    return found
