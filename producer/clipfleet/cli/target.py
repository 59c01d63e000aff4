"""``module:name`` of the command line: a pipeline in somebody's module."""

from __future__ import annotations

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
        ImportError: the module lacks something itself.
    """
    from clipfleet.pipeline.named import load_pipeline as load  # noqa: PLC0415  needs the [worker] extra

    module = target.partition(":")[0]
    try:
        return load(target)
    except ModuleNotFoundError as error:
        # What the module itself lacks is its own affair.
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise usage(f"there is no module {module!r} in {Path.cwd()}, nor installed") from None
    except ImportError as error:
        if error.name is not None:
            raise
        raise usage(str(error)) from None
