"""What an error of Milvus means, and when to try again.

Milvus speaks in two families, ``MilvusException`` (codes that differ between Lite, 2.3 and later) and raw
``grpc.RpcError``. ``classify`` turns both into one ``Verdict``; ``retry_delay`` is the policy, ``retrying`` the one
place that applies it.
"""

from __future__ import annotations

import random
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeVar

from clipfleet.schemas.errors import ClipfleetError, ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

__all__ = ["StoreUnavailable", "Verdict", "classify", "is_too_large", "retry_delay", "retrying"]

T = TypeVar("T")

_BASE_DELAY_S: Final = 0.05
_RATE_LIMIT_DELAY_S: Final = 0.5  # a quota is measured over seconds; asking sooner only feeds it
_MAX_DELAY_S: Final = 5.0

# pymilvus' ErrorCode and Milvus' merr: the same numbers on Lite and on the server, as far as they appear on both.
_MISSING_CODES = frozenset({4, 100})
_NOT_LOADED_CODES = frozenset({101})
_RATE_CODES = frozenset({8, 9})  # RATE_LIMIT and FORCE_DENY ("quota exceeded")
_INVALID_CODES = frozenset({5, 6, 1100, 1101, 1700})
# Before 2.4 a server answers 65535 for nearly everything, and then only the text tells a bad row from a bad day.
_INVALID_TEXTS = (
    "invalid parameter",
    "exceeds max length",
    "should divide the dim",
    "is not a number or infinity",
    "cannot parse expression",
    "is invalid, top k",
    "does not match",
)
# What gRPC says of a certificate whose signer it does not know, and of one for another host.
_UNTRUSTED_MARKS = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed")
_UNTRUSTED = (
    "the certificate of Milvus is not trusted: name its CA by MILVUS_CA_FILE, and Milvus as its certificate does"
)
_GRPC_INVALID = frozenset({"INVALID_ARGUMENT", "UNIMPLEMENTED", "OUT_OF_RANGE", "FAILED_PRECONDITION"})
# A server that refuses a new connection's token is called unavailable by pymilvus; only the cause knows better.
_CONNECT_FAILED = 2
_GRPC_DENIED = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})
_DENIED_CODES = frozenset({1400, 1401, 1402})


class Verdict(Enum):
    """What a caller can do about an error."""

    RETRY = auto()  # the store is away, slow or not ready: the same call may succeed later
    RATE_LIMITED = auto()  # it asks for less: the same call later, after a longer wait
    SPLIT = auto()  # too much in one message: fewer rows
    MISSING = auto()  # the collection is not there (any more)
    NOT_LOADED = auto()  # the collection is there, but not in memory
    INVALID = auto()  # what was sent is at fault; again is in vain
    DENIED = auto()  # the token is refused


class StoreUnavailable(ClipfleetError):
    """Milvus did not do it now; nothing is decided about the items, so keep their leases and try again.

    Attributes:
        message: one line for people, without secrets.
        retry_in_s: the shortest wait that makes sense before the next attempt.
    """

    def __init__(self, message: str, retry_in_s: float = _BASE_DELAY_S) -> None:
        super().__init__(message)
        self.message = message
        self.retry_in_s = retry_in_s


def _grpc_code(error: BaseException | None) -> str:
    # `.code` is a method on grpc.RpcError, an int on MilvusException, and a grpc.StatusCode on the MilvusException
    # that pymilvus raises when its own retries ran out.
    code = getattr(error, "code", None)
    if callable(code):
        code = code()
    return getattr(code, "name", "")


def is_too_large(error: BaseException) -> bool:
    """Whether the message as a whole was over the server's limit (64 MiB by default), and not its rate."""
    return "larger than max" in str(error)


def _classify_grpc(code: str, error: BaseException) -> Verdict:
    if code == "RESOURCE_EXHAUSTED":
        return Verdict.SPLIT if is_too_large(error) else Verdict.RATE_LIMITED
    if code in _GRPC_DENIED:
        return Verdict.DENIED
    return Verdict.INVALID if code in _GRPC_INVALID else Verdict.RETRY


_BY_CODE: Final = {
    **dict.fromkeys(_MISSING_CODES, Verdict.MISSING),
    **dict.fromkeys(_NOT_LOADED_CODES, Verdict.NOT_LOADED),
    **dict.fromkeys(_RATE_CODES, Verdict.RATE_LIMITED),
    **dict.fromkeys(_INVALID_CODES, Verdict.INVALID),
    **dict.fromkeys(_DENIED_CODES, Verdict.DENIED),
}


def classify(error: BaseException) -> Verdict:
    """The meaning of an error raised by pymilvus; an unknown one counts as passing (``RETRY``).

    Waiting for an error that turns out to be permanent ends at the item's deadline with ``store_failed``, which loses
    nothing; giving up on one that would have passed loses a row.
    """
    name = _grpc_code(error)
    if name:
        return _classify_grpc(name, error)
    code = getattr(error, "code", None)
    if code == _CONNECT_FAILED and _grpc_code(error.__cause__) in _GRPC_DENIED:
        return Verdict.DENIED
    if isinstance(code, int) and code in _BY_CODE:
        return _BY_CODE[code]
    if type(error).__name__ in {"DataNotMatchException", "ParamError", "DataTypeNotMatchException"}:
        return Verdict.INVALID
    text = str(error)
    if any(mark in text for mark in _INVALID_TEXTS):
        return Verdict.INVALID
    return Verdict.RETRY


def retry_delay(error: BaseException, attempt: int, *, jitter: Callable[[], float] = random.random) -> float | None:
    """Seconds to wait before attempt ``attempt + 1``, or ``None`` when trying again is in vain.

    Exponential with full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), never
    below what the error itself asks for, at most 5 s.

    Args:
        error: what the last attempt raised.
        attempt: 0 for the first failure.
        jitter: a number in 0 to 1, for tests.
    """
    if not isinstance(error, StoreUnavailable):
        return None
    ceiling = min(_MAX_DELAY_S, _BASE_DELAY_S * 2.0 ** min(attempt, 16))
    return max(error.retry_in_s, ceiling * jitter())


def _is_untrusted(error: BaseException) -> bool:
    # pymilvus keeps the handshake's own words in the cause alone.
    return any(mark in f"{error} {error.__cause__}" for mark in _UNTRUSTED_MARKS)


def unavailable(error: BaseException, doing: str) -> StoreUnavailable:
    """The ``StoreUnavailable`` that stands for ``error``, raised while ``doing``."""
    slow = classify(error) is Verdict.RATE_LIMITED
    text = _UNTRUSTED if _is_untrusted(error) else " ".join(str(error).split())[:300]
    return StoreUnavailable(f"{doing}: {text}", _RATE_LIMIT_DELAY_S if slow else _BASE_DELAY_S)


def retrying(
    call: Callable[[], T],
    *,
    deadline: float,
    stop: Event,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Call until it succeeds, its error is final, the deadline passes, or ``stop`` is set.

    Args:
        call: what to do; it is repeated only after a ``StoreUnavailable``, and writes here are upserts, so a repeated
            one that had been applied changes nothing.
        deadline: in the clock's seconds.
        stop: ends the waiting at once, for a shutdown.
        clock: monotonic seconds.

    Returns:
        What ``call`` returned.

    Raises:
        RequestFailed: ``store_failed`` when the next attempt would start after the deadline; or ``call``'s own.
        StoreUnavailable: ``stop`` was set; nothing is decided, the items can be handed back.
    """
    attempt = 0
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            delay = retry_delay(error, attempt)
            if delay is None or stop.is_set():
                raise
            if clock() + delay > deadline:
                raise error_for(ErrorCode.STORE_FAILED, f"the store did not answer in time: {error.message}") from error
            if stop.wait(delay):
                raise
            attempt += 1
