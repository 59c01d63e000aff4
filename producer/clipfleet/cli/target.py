"""``module:name`` of the command line: a pipeline in somebody's module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.cli.run import usage

if TYPE_CHECKING:
    from clipfleet.pipeline import Pipeline

__all__ = ["load_pipeline"]


def load_pipeline(target: str) -> Pipeline:
    """Import a pipeline; modules of the current folder are found first.

    Raises:
        CliError: usage error: there is no such module or pipeline; says which there are.
    """
    from clipfleet.pipeline import Pipeline  # noqa: PLC0415  needs the [worker] extra

    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name) or module_name.startswith("."):
        raise usage(f"a pipeline is named MODULE:NAME, not {target!r}")
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # What the module itself lacks is its own affair.
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise usage(f"there is no module {module_name!r} in {here}, nor installed") from None
    pipeline = getattr(module, name, None)
    if isinstance(pipeline, Pipeline):
        return pipeline
    there = [one for one, value in vars(module).items() if isinstance(value, Pipeline)]
    what = f"{target} is no pipeline (but {type(pipeline).__name__})" if pipeline is not None else f"no {target}"
    raise usage(f"{what}; in {module_name} there are: {', '.join(there) or 'none'}")
