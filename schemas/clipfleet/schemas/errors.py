"""What can go wrong, as outsiders see it.

The tree (the class decides what a caller may do, the code says which case it is)::

    ClipfleetError
    ├── ProtocolError            bytes that are no valid request or result; carries an ErrorCode
    └── RequestFailed            one request ended without outputs; carries an ErrorCode
        ├── BadInput             the input itself is at fault: sending it again cannot help
        ├── ModelFailed          the model (or the process that ran it) failed on it
        ├── StoreFailed          Milvus did not take or find it
        ├── Expired              its deadline passed first
        ├── Cancelled            its caller did not want it any more
        └── Unavailable          nobody could take it: no worker, no Redis
            └── QueueFull        the queue holds its capacity; ``retry_after`` says when to come back

Codes, their meaning and whether a retry can help are the contract with other languages (docs/protocol.md).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

__all__ = [
    "BadInput",
    "Cancelled",
    "ClipfleetError",
    "ErrorCode",
    "Expired",
    "ModelFailed",
    "ProtocolError",
    "QueueFull",
    "RequestFailed",
    "StoreFailed",
    "Unavailable",
    "error_for",
]


class ErrorCode(StrEnum):
    """Every error code of the wire format. ``.retryable`` says whether the same request may succeed later."""

    BAD_REQUEST = "bad_request"  # the request map, its options or the call are malformed
    TOO_LARGE = "too_large"  # more bytes than the queue allows for one request
    EMPTY_INPUT = "empty_input"  # nothing to embed: no bytes, or blank text
    UNSUPPORTED_MEDIA = "unsupported_media"  # the bytes are no picture of a format that we decode
    CORRUPT_IMAGE = "corrupt_image"  # a picture, but broken or cut off
    TOO_MANY_PIXELS = "too_many_pixels"  # more pixels than the worker decodes
    BAD_SHAPE = "bad_shape"  # degenerate sides, or a vector of another dimension
    FETCH_FORBIDDEN = "fetch_forbidden"  # a url or path that this worker may not read
    FETCH_FAILED = "fetch_failed"  # allowed, but it could not be read now
    UNKNOWN_PIPELINE = "unknown_pipeline"  # no worker of this queue serves it
    MODEL_FAILED = "model_failed"  # the model call raised or gave unusable output for this item
    OUT_OF_MEMORY = "out_of_memory"  # the device has no memory left even for this item alone
    STORE_FAILED = "store_failed"  # Milvus did not acknowledge in time
    MODEL_MISMATCH = "model_mismatch"  # the collection belongs to another fingerprint
    EXPIRED = "expired"  # the deadline passed before it was answered
    CANCELLED = "cancelled"  # the producer withdrew it
    POISONED = "poisoned"  # it was in hand each time its worker died; it will not be run again
    INTERNAL = "internal"  # unforeseen; the incident id is in the worker's log
    QUEUE_FULL = "queue_full"  # the queue holds its capacity (at the producer)
    UNAVAILABLE = "unavailable"  # no worker, or no Redis (at the producer)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when sent again later."""
        return self in _RETRYABLE

    @property
    def meaning(self) -> str:
        """One line for people."""
        return _MEANING[self].text

    @property
    def needs_owner(self) -> bool:
        """Whether this is a failure of the worker, which only the lease's owner may report.

        A verdict on the item itself is true whoever speaks it; ``poisoned`` by a worker that has lost the lease
        may contradict a result that the new owner is about to give.
        """
        return self in _NEEDS_OWNER


_RETRYABLE = frozenset(
    {
        ErrorCode.FETCH_FAILED,
        ErrorCode.OUT_OF_MEMORY,
        ErrorCode.STORE_FAILED,
        ErrorCode.QUEUE_FULL,
        ErrorCode.UNAVAILABLE,
    }
)
_NEEDS_OWNER = frozenset(
    {
        ErrorCode.POISONED,
        ErrorCode.MODEL_FAILED,
        ErrorCode.STORE_FAILED,
        ErrorCode.OUT_OF_MEMORY,
        ErrorCode.EXPIRED,
        ErrorCode.INTERNAL,
        ErrorCode.FETCH_FAILED,
    }
)


class ClipfleetError(Exception):
    """Root of everything that clipfleet raises on purpose."""


class ProtocolError(ClipfleetError):
    """The bytes are no valid request or result.

    Attributes:
        code: the error code to answer with, ``bad_request`` or ``too_large``.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.BAD_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class RequestFailed(ClipfleetError):
    """One request ended without outputs.

    Attributes:
        code: which case it is.
        message: one line for people; never holds secrets or a traceback.
        retryable: whether the same request may succeed later.
        request_id: the request's id where known, else an empty string.
    """

    def __init__(
        self,
        code: ErrorCode | str,
        message: str = "",
        *,
        retryable: bool | None = None,
        request_id: str = "",
    ) -> None:
        self.code = _code(code)
        self.message = message or self.code.meaning
        self.retryable = self.code.retryable if retryable is None else retryable
        self.request_id = request_id
        super().__init__(f"{self.code}: {self.message}")

    def __reduce__(self) -> tuple[Any, ...]:
        # The inherited one calls the class with ``args``, which hold the text and not what __init__ takes: an
        # error sent to another process would arrive as another one, or not at all.
        return _revive, (type(self), self.args), self.__dict__


def _revive(family: type[RequestFailed], args: tuple[Any, ...]) -> RequestFailed:
    return family.__new__(family, *args)


class BadInput(RequestFailed):
    """The input itself is at fault: sending it again cannot help."""


class ModelFailed(RequestFailed):
    """The model, or the process that ran it, failed on this request."""


class StoreFailed(RequestFailed):
    """Milvus did not take or find it."""


class Expired(RequestFailed):
    """The deadline passed before the request was answered."""


class Cancelled(RequestFailed):
    """The producer withdrew the request."""


class Unavailable(RequestFailed):
    """Nobody could take the request: no worker, or no Redis."""


class QueueFull(Unavailable):
    """The queue holds its capacity.

    Attributes:
        retry_after: seconds until a place is likely to be free, from the fleet's measured rate.
    """

    def __init__(self, retry_after: float, message: str = "", *, request_id: str = "") -> None:
        super().__init__(
            ErrorCode.QUEUE_FULL,
            message or f"the queue is full; try again in {retry_after:.3g} s",
            request_id=request_id,
        )
        self.retry_after = retry_after


class _Case(NamedTuple):
    text: str
    family: type[RequestFailed]


_MEANING: dict[ErrorCode, _Case] = {
    ErrorCode.BAD_REQUEST: _Case("the request is malformed", BadInput),
    ErrorCode.TOO_LARGE: _Case("the request is larger than this queue allows", BadInput),
    ErrorCode.EMPTY_INPUT: _Case("there is nothing to embed", BadInput),
    ErrorCode.UNSUPPORTED_MEDIA: _Case("the bytes are no picture of a supported format", BadInput),
    ErrorCode.CORRUPT_IMAGE: _Case("the picture is broken or cut off", BadInput),
    ErrorCode.TOO_MANY_PIXELS: _Case("the picture has more pixels than this worker decodes", BadInput),
    ErrorCode.BAD_SHAPE: _Case("the input has a shape that the model cannot take", BadInput),
    ErrorCode.FETCH_FORBIDDEN: _Case("this worker may not read that address", BadInput),
    ErrorCode.FETCH_FAILED: _Case("the address could not be read", BadInput),
    ErrorCode.UNKNOWN_PIPELINE: _Case("no worker of this queue serves that pipeline", BadInput),
    ErrorCode.MODEL_FAILED: _Case("the model failed on this input", ModelFailed),
    ErrorCode.OUT_OF_MEMORY: _Case("the device ran out of memory", ModelFailed),
    ErrorCode.STORE_FAILED: _Case("the vector store did not answer in time", StoreFailed),
    ErrorCode.MODEL_MISMATCH: _Case("the collection belongs to another model", StoreFailed),
    ErrorCode.EXPIRED: _Case("the deadline passed before an answer", Expired),
    ErrorCode.CANCELLED: _Case("the request was cancelled", Cancelled),
    ErrorCode.POISONED: _Case("its worker died each time this request was run", ModelFailed),
    ErrorCode.INTERNAL: _Case("an unforeseen error; see the worker's log", ModelFailed),
    ErrorCode.QUEUE_FULL: _Case("the queue is full", Unavailable),
    ErrorCode.UNAVAILABLE: _Case("nobody can take the request now", Unavailable),
}


def _code(code: ErrorCode | str) -> ErrorCode:
    # A newer worker may send a code that this release does not know: it must not crash the client.
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.INTERNAL


def error_for(
    code: ErrorCode | str, message: str = "", *, retryable: bool | None = None, request_id: str = ""
) -> RequestFailed:
    """The exception of the family that ``code`` belongs to (`queue_full` becomes ``QueueFull`` with 1 s)."""
    known = _code(code)
    if known is ErrorCode.QUEUE_FULL:
        return QueueFull(1.0, message, request_id=request_id)
    return _MEANING[known].family(known, message, retryable=retryable, request_id=request_id)
