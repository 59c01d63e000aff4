"""What the methods of a flow check of their arguments, each error naming the stage."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clipfleet.operators.operator import Operator, StageOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Columns", "PipelineError", "check_call", "name_of", "names_of", "read_options", "text_of"]

Columns = str | tuple[str, ...]


class PipelineError(ValueError):
    """A definition that cannot work; the text names the stage."""


def names_of(columns: Columns) -> tuple[str, ...]:
    """The names, of which a single one may be given as text."""
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if len(set(names)) != len(names) or not all(names):
        raise PipelineError(f"{columns!r}: columns are different names")
    return names


def text_of(columns: Columns) -> str:
    """Columns as an error names them."""
    return ", ".join(repr(name) for name in names_of(columns)) or "nothing"


def name_of(does: Any) -> str:
    """What a function or an operator is called."""
    if isinstance(does, Operator):
        return does.name
    if isinstance(does, functools.partial):
        return name_of(does.func)
    name = getattr(does, "__name__", None) or type(does).__name__
    return "lambda" if name == "<lambda>" else str(name)


def read_options(what: str, options: Mapping[str, Any]) -> StageOptions:
    """The options of a stage."""
    try:
        chosen = StageOptions(**options)
        return replace(chosen, providers=tuple(chosen.providers)) if chosen.providers is not None else chosen
    except (TypeError, ValueError) as error:
        raise PipelineError(f"{what}: {str(error).removeprefix('StageOptions.__init__() ')}") from None


def check_call(what: str, does: Any, count: int) -> None:
    """Refuse what cannot be called with so many columns."""
    if isinstance(does, Operator):
        return
    if not callable(does):
        raise PipelineError(f"{what}: {does!r} can be called by nobody; give a function, an operator or a pipeline")
    if inspect.iscoroutinefunction(does):
        raise PipelineError(f"{what}: stages run in threads; an async function cannot be one")
    try:
        signature = inspect.signature(does)
    except (TypeError, ValueError):  # some of C's functions have none
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise PipelineError(f"{what}: it cannot be called with {count} columns: {error}") from None
