"""Many inputs through the fleet: read one by one, sent as they fit, answered in their own order."""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from clipfleet.cli.errors import Exit, advice, exit_for_items
from clipfleet.index.files import PICTURE_SUFFIXES, printable, read_picture
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from io import BufferedReader

    from clipfleet.cli.output import Output
    from clipfleet.producer import Client
    from clipfleet.producer.requests import NewRequest
    from clipfleet.schemas.result import Result

__all__ = [
    "Answer",
    "Item",
    "Tally",
    "answers",
    "file_items",
    "groups_of",
    "line_groups",
    "tell_of_files",
    "text_items",
]

_MAX_IN_FLIGHT: Final = 256
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """One input.

    Attributes:
        label: what the user called it, printable.
        value: the text, or the picture's bytes; or why there is none.
    """

    label: str
    value: str | bytes | RequestFailed


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one input: a result, or a failure from before it was sent.

    Attributes:
        label: the input.
        result: the fleet's answer; None when it was never sent.
        error: why there are no outputs; None when all is well.
    """

    label: str
    result: Result | None
    error: RequestFailed | None


class Tally:
    """Counts the answers of one run and tells at its end what to do about those that failed."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._done = 0
        self._failed: list[ErrorCode] = []

    def add(self, error: RequestFailed | None) -> None:
        """One more answer."""
        if error is None:
            self._done += 1
        else:
            self._failed.append(error.code)

    def end(self) -> Exit:
        """The exit code; advice goes to stderr, once for each kind of failure that there is advice for."""
        for code in dict.fromkeys(self._failed):
            if hint := advice(code):
                self._out.note(f"  {code}: {hint}")
        return exit_for_items(self._done, self._failed)


def text_items(texts: Iterable[str | bytes]) -> Iterator[Item]:
    """Texts as they are, all of them UTF-8: arguments as well as bytes, the lines of stdin."""
    for text in texts:
        if isinstance(text, bytes):
            try:
                yield Item(text.decode(), text.decode())
            except UnicodeDecodeError:
                label = text.decode("utf-8", "backslashreplace")
                yield Item(label, error_for(ErrorCode.BAD_REQUEST, "the line is not UTF-8"))
        elif text.isascii() or printable(text) == text:
            yield Item(text, text)
        else:
            # The shell hands over bytes outside UTF-8 as lone surrogates; a guess at them would be another text.
            yield Item(printable(text), error_for(ErrorCode.BAD_REQUEST, "the text is not UTF-8"))


def tell_of_files(texts: Sequence[str], out: Output) -> None:
    """Say of arguments that are read as words and are pictures' files what reads the pictures."""
    for text in texts:
        # isfile answers for names that no system takes, too; Path.is_file raises for those that are too long.
        if Path(text).suffix.lower() in PICTURE_SUFFIXES and os.path.isfile(text):  # noqa: PTH113
            out.note(
                f"{printable(text)} is a file, and is read as words here: --image {printable(text)} reads the picture"
            )


def file_items(paths: Iterable[str | bytes]) -> Iterator[Item]:
    """Pictures of files, read one by one."""
    for path in paths:
        name = path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else path
        try:
            yield Item(printable(name), read_picture(Path(name)))
        except RequestFailed as error:
            if error.code == ErrorCode.FETCH_FAILED and "://" in name:
                text = "files are read here, and no addresses: save the picture and name its file"
                error = error_for(ErrorCode.FETCH_FAILED, text, retryable=False)
            yield Item(printable(name), error)


def groups_of(arguments: Sequence[str]) -> Iterator[Sequence[str | bytes]] | None:
    """The arguments in groups to be answered one after the other; None when there is nothing to read.

    ``-``, and no argument at all, stands for the lines of stdin: each group is what has come so far, so that
    whoever writes a line and waits gets its answer.
    """
    if not arguments and (sys.stdin is None or sys.stdin.isatty()):
        return None
    return _groups(arguments or ["-"])


def _groups(arguments: Sequence[str]) -> Iterator[Sequence[str | bytes]]:
    named: list[str | bytes] = []
    for argument in arguments:
        if argument == "-":
            yield named
            named = []
            yield from line_groups(cast("BufferedReader", sys.stdin.buffer))
        else:
            named.append(argument)
    yield named


def line_groups(stream: BufferedReader) -> Iterator[list[str | bytes]]:
    """Whole lines without their ends, as many at a time as have come; the nth output belongs to the nth line."""
    rest = b""
    while data := stream.read1(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


def answers(client: Client, items: Iterable[Item], call: Callable[[str | bytes], NewRequest]) -> Iterator[Answer]:
    """Send ``call(item.value)`` for each item and yield what became of it, in the order of ``items``.

    At most 256 are under way; a full queue is waited for. One failed item never stops the others.
    """
    order: deque[Item] = deque()

    def calls() -> Iterator[NewRequest]:
        for item in items:
            order.append(item)
            if not isinstance(item.value, RequestFailed):
                yield call(item.value)

    for result in client.map(calls(), max_in_flight=_MAX_IN_FLIGHT, ordered=True):
        yield from _unsent(order)
        yield Answer(order.popleft().label, result, result.error)
    yield from _unsent(order)


def _unsent(order: deque[Item]) -> Iterator[Answer]:
    while order and isinstance(order[0].value, RequestFailed):
        item = order.popleft()
        yield Answer(item.label, None, item.value if isinstance(item.value, RequestFailed) else None)
