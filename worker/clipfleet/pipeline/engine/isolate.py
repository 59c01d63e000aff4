"""Run a batch so that one bad item costs its neighbours nothing.

A call that raises says nothing about which item made it raise. So the batch is halved until the guilty item
stands alone: for one among 64 that is 12 more calls, and the innocent are answered by all but one of them. Out of
memory is no item's fault: the size that failed is remembered and never tried again by this process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from clipfleet.pipeline.engine.incident import incident
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.pipeline.work import Task

__all__ = ["Isolator"]

log = logging.getLogger(__name__)


class Isolator:
    """One batch stage's calls.

    Args:
        run: the stage.
        is_out_of_memory: tells the device's lack of memory from other errors.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Task]], Sequence[Any]],
        is_out_of_memory: Callable[[Exception], bool],
    ) -> None:
        self._run = run
        self._is_out_of_memory = is_out_of_memory
        self.most: int | None = None  # items that the device is known to have memory for

    def __call__(self, batch: Sequence[Task]) -> list[Any]:
        """One value or ``RequestFailed`` per item, in order; never raises for an item."""
        size = self.most or len(batch)
        values: list[Any] = []
        start = 0
        while start < len(batch):
            part = batch[start : start + size]
            values += self._attempt(part)
            start += len(part)
            size = min(size, self.most or size)
        return values

    def _attempt(self, batch: Sequence[Task]) -> list[Any]:
        try:
            values = self._run(batch)
            wrong = _wrong(batch[0], values)
            if wrong is not None:
                return [wrong] * len(batch)
            if len(values) != len(batch):
                raise error_for(
                    ErrorCode.MODEL_FAILED, f"{counted(len(values), 'output')} for {counted(len(batch), 'input')}"
                )
            return [self._verdict(task, value) for task, value in zip(batch, values, strict=True)]
        except Exception as error:  # noqa: BLE001  (whatever foreign code raises is about this batch)
            return self._failed(batch, error)

    @staticmethod
    def _verdict(task: Task, value: Any) -> Any:
        """An exception in an item's place is about that item."""
        if isinstance(value, Exception) and not isinstance(value, RequestFailed):
            return incident(value, ErrorCode.MODEL_FAILED, task.work.request.id, task.step.name)
        return value

    def _failed(self, batch: Sequence[Task], error: Exception) -> list[Any]:
        memory = self._is_out_of_memory(error)
        if len(batch) > 1:
            half = (len(batch) + 1) // 2
            if memory:
                self.most = min(self.most or half, half)
                log.warning("out of memory with a batch of %d; %d from now on", len(batch), self.most)
            return self._attempt(batch[:half]) + self._attempt(batch[half:])
        if memory:
            return [error_for(ErrorCode.OUT_OF_MEMORY, "the device has no memory for this item alone")]
        if isinstance(error, RequestFailed):
            return [error]
        return [incident(error, ErrorCode.MODEL_FAILED, batch[0].work.request.id, batch[0].step.name)]


def _wrong(task: Task, values: Any) -> RequestFailed | None:
    """The verdict on outputs that are no list of one per item: smaller batches would not make them one.

    A tuple for several columns is most likely one list per column: with as many items as columns it would pass for
    outputs, each item with the values of others.
    """
    name = type(values).__name__
    if isinstance(values, str | bytes | dict | set | frozenset) or not hasattr(values, "__len__"):
        text = f"stage {task.step.name!r} gave {name} and no list with an output for each item"
    elif isinstance(values, tuple) and len(task.step.writes) > 1:
        text = f"stage {task.step.name!r} gave {name} and no list with a tuple of its columns for each item"
    else:
        return None
    return error_for(ErrorCode.MODEL_FAILED, text)
