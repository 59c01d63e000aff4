"""Looking into a running engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Observer"]


class Observer:
    """Told of what stages do, in the thread that does it: keep it short. An exception of its own ends the process.

    Override what you need.

    Attributes:
        values: whether it is to be told of each value.
    """

    values: bool = False

    def ran(
        self,
        stage: str,
        instance: str,
        began: float,
        ended: float,
        size: int,
        ids: Sequence[str],
        waited_s: Sequence[float],
    ) -> None:
        """A stage was called once.

        Args:
            stage: its name.
            instance: the thread's name.
            began: ``time.monotonic()``.
            ended: likewise.
            size: items of the call.
            ids: of their requests.
            waited_s: how long each waited for it.
        """

    def made(self, request_id: str, step: str, row: tuple[int, ...], inputs: Sequence[Any], value: Any) -> None:
        """A step has its value (only called if ``values`` is true).

        Args:
            request_id: of the request.
            step: name of the step.
            row: the row's number among its siblings, and theirs above it; empty for the request's own.
            inputs: the input columns.
            value: what the stage gave, or the error it ended in.
        """
