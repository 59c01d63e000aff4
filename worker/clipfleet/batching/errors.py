"""What batching raises.

BatchingError
├── Full            no room: `retry_after` says when to come back
├── Closed          the batcher takes nothing more
├── WrongCount      the function gave another number of outputs than it got inputs
└── FunctionFailed  the function raised what must not travel into a caller (SystemExit, StopIteration, ...)
"""

from __future__ import annotations


class BatchingError(Exception):
    """Whatever a batcher itself has to say; what the user's function raises keeps its own type."""


class Full(BatchingError):
    """There is no room for one more item; nothing was added.

    Attributes:
        retry_after: seconds after which the present backlog will have run, by the measured rate; 1.0 while that
            is unknown.
    """

    def __init__(self, capacity: int, retry_after: float) -> None:
        super().__init__(f"full: {capacity} items are waiting or running; retry after {retry_after:.3f} s")
        self.retry_after = retry_after


class Closed(BatchingError):
    """The batcher was closed; nothing was added, or nothing is left to take."""

    def __init__(self) -> None:
        super().__init__("the batcher is closed")


class WrongCount(BatchingError):
    """The function returned another number of outputs than it was given inputs, so none can be matched."""

    def __init__(self, inputs: int, outputs: str) -> None:
        super().__init__(f"the function returns as many outputs as it was given inputs: {inputs}, not {outputs}")


class FunctionFailed(BatchingError):
    """The function raised something that would stop the caller's own thread or event loop; it is the cause."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the function raised {type(cause).__name__}: {cause}")
        self.__cause__ = cause
