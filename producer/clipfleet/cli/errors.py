"""What goes wrong at the command line: one line, its code, what to do, an exit code."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from clipfleet.schemas.errors import ClipfleetError, ErrorCode, ProtocolError, RequestFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CliError", "Exit", "advice", "describe", "exit_for", "exit_for_items"]


class Exit(IntEnum):
    """Exit codes, as scripts rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    BUSY = 4
    INTERRUPTED = 130


class CliError(ClipfleetError):
    """A command cannot go on.

    Attributes:
        hint: what the user can do about it; may be empty.
        exit: the exit code.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit = exit_code


_ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNAVAILABLE: "Is a fleet running? Start one with 'clipfleet up', or name it with --redis-url; "
    "'clipfleet doctor' looks for the cause.",
    ErrorCode.QUEUE_FULL: "Try again later, or add workers; 'clipfleet status' shows the backlog.",
    ErrorCode.EXPIRED: "The fleet is too slow or stuck; 'clipfleet status' shows the backlog.",
    ErrorCode.STORE_FAILED: "'clipfleet doctor' looks at Milvus.",
    ErrorCode.MODEL_MISMATCH: "Use another --collection, or the model that this one was indexed with.",
    ErrorCode.POISONED: "'clipfleet dead list' shows what was in hand when the worker died.",
    ErrorCode.INTERNAL: "The incident id is in the worker's log.",
    ErrorCode.MODEL_FAILED: "The worker's log has the cause.",
    ErrorCode.UNKNOWN_PIPELINE: "This queue's workers do not serve it: a worker without --milvus-uri serves "
    "embeddings alone.",
    ErrorCode.TOO_LARGE: "Send less, or raise the fleet's limit (worker --max-request-bytes N --set).",
}


def advice(code: ErrorCode) -> str:
    """What to do about ``code``; empty when the message says all."""
    return _ADVICE.get(code, "")


def describe(error: BaseException) -> tuple[str, str]:
    """(one line with its code, what to do) for ``error``."""
    if isinstance(error, RequestFailed):
        return f"{error.code}: {error.message}", advice(error.code)
    if isinstance(error, CliError):
        return str(error), error.hint
    if isinstance(error, ProtocolError):
        return f"{error.code}: {error}", ""
    if isinstance(error, ClipfleetError):
        return str(error), ""
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed here", _install_line(error.name or "")
    # A path and what the system says of it are for people; a class name is not.
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    return text, "Run it again with --debug to see where."


def exit_for(error: BaseException) -> Exit:
    """The exit code when ``error`` ended the command."""
    if isinstance(error, CliError):
        return error.exit
    if isinstance(error, Unavailable):
        return Exit.BUSY
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return Exit.FAILED


def exit_for_items(done: int, failed: Iterable[ErrorCode]) -> Exit:
    """The exit code after a run over items: ``done`` went well, ``failed`` are the codes of the others.

    Nothing done is a failure, never "some failed"; when nobody could take anything it is 4.
    """
    codes = set(failed)
    if not codes:
        return Exit.OK
    if done:
        return Exit.PARTIAL
    return Exit.BUSY if codes <= {ErrorCode.UNAVAILABLE, ErrorCode.QUEUE_FULL} else Exit.FAILED


_EXTRA_OF: Final = {
    **dict.fromkeys(("numpy", "PIL", "tokenizers", "ftfy", "pymilvus", "onnxruntime"), "cpu"),
    **dict.fromkeys(("torch", "torchvision", "open_clip", "onnx", "onnxscript"), "torch"),
}


def _install_line(package: str) -> str:
    return f'Install it with:  pip install "clipfleet[{_EXTRA_OF.get(package.partition(".")[0], "local")}]"'
