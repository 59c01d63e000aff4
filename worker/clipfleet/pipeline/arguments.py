"""What the methods of a flow check of their arguments, each error naming the stage."""

from __future__ import annotations

import functools
import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from clipfleet.operators.operator import BatchOperator, Operator, StageOptions
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Columns",
    "PipelineError",
    "check_call",
    "check_no_options",
    "check_options",
    "name_of",
    "names_of",
    "read_options",
    "text_of",
]

Columns = str | tuple[str, ...]
OPTIONS = tuple(field.name for field in fields(StageOptions))


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
    for name in options:
        if name not in OPTIONS:
            raise PipelineError(f"{what}: there is no option {name!r}; there are {', '.join(OPTIONS)}")
    try:
        return StageOptions(**options)
    except (TypeError, ValueError) as error:
        raise PipelineError(f"{what}: {error}") from None


def check_options(what: str, does: Any, count: int, options: StageOptions) -> None:
    """Refuse options that would do nothing, or what nobody means, for ``does`` with ``count`` input columns."""
    batches = isinstance(does, BatchOperator) or options.max_batch_size is not None
    if options.inline and batches:
        raise PipelineError(f"{what}: what runs in batches cannot be inline")
    if options.inline and (options.instances, options.timeout) != (None, None):
        raise PipelineError(f"{what}: what is inline has no thread of its own: neither instances nor a timeout")
    if isinstance(does, Operator) and not isinstance(does, BatchOperator):
        if (options.max_batch_size, options.max_delay) != (None, None):
            raise PipelineError(f"{what}: this operator takes items one by one, and forms no batches")
    elif options.max_delay is not None and not batches:
        raise PipelineError(f"{what}: max_delay is for batches; say max_batch_size, and the function gets lists")
    if options.timeout is not None and getattr(does, "resource", "").startswith("store"):
        raise PipelineError(f"{what}: it waits for the store until the request's deadline, and has no timeout")
    if batches and count == 0:
        raise PipelineError(f"{what}: what runs in batches needs an input column: its length is the batch's")


def check_no_options(what: str, options: StageOptions) -> None:
    """Refuse options of a pipeline in a stage's place: its steps have theirs."""
    if options != StageOptions():
        given = [name for name in OPTIONS if getattr(options, name) != getattr(StageOptions(), name)]
        raise PipelineError(f"{what}: {', '.join(given)} belong to the steps inside of it")


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
        raise PipelineError(f"{what}: it cannot be called with {counted(count, 'column')}: {error}") from None
