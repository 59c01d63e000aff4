"""Pipelines by ``module:name``, as a command line names them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from clipfleet.pipeline.pipeline import Pipeline

__all__ = ["load_pipeline"]


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
