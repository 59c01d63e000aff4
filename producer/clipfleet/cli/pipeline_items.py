"""What ``clipfleet pipeline run`` feeds a pipeline with, and what becomes of it."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clipfleet.cli.run import usage
from clipfleet.index.files import printable, read_picture
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clipfleet.pipeline import Pipeline
    from clipfleet.pipeline.table import Table
    from clipfleet.pipeline.trace import Trace

__all__ = ["Given", "Outcome", "given_lines", "given_words", "is_file_input", "outcomes"]

_FILE_INPUT: Final = re.compile(r"(?:.*_)?(?:image|img|picture|photo|video|bytes)s?_?[0-9]*")


@dataclass(frozen=True, slots=True)
class Given:
    """One request to run.

    Attributes:
        label: what the user called it, printable.
        values: the inputs by name; or why there are none.
    """

    label: str
    values: dict[str, Any] | RequestFailed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request.

    Attributes:
        label: the request.
        table: its rows; None if it failed.
        error: why it failed.
    """

    label: str
    table: Table | None
    error: RequestFailed | None


def is_file_input(name: str) -> bool:
    """Whether a text for this input is the path of a file, whose bytes are meant.

    It is for ``image``, ``img``, ``picture``, ``photo``, ``video`` and ``bytes``, also as the last word of a name
    (``left_image``, ``image_2``); all else is text.
    """
    return _FILE_INPUT.fullmatch(name) is not None


def given_words(pipeline: Pipeline, words: Iterable[str]) -> Iterator[Given]:
    """Requests of the command line: each word is the pipeline's first input."""
    name = pipeline.inputs[0]
    for word in words:
        label = printable(word)
        try:
            yield Given(label, {name: _value(name, word)})
        except RequestFailed as error:
            yield Given(label, error)


def given_lines(pipeline: Pipeline, path: Path) -> Iterator[Given]:
    """Requests of a file: each line is a JSON object of inputs by name.

    Raises:
        CliError: usage error: the file cannot be read.
    """
    try:
        file = path.open(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise usage(f"{path}: {error.strerror or error}") from None
    with file:
        for number, line in enumerate(file, 1):
            if line.strip():
                label = f"{printable(str(path))}:{number}"
                try:
                    yield Given(label, _object(pipeline.inputs, line))
                except RequestFailed as error:
                    yield Given(label, error)


def outcomes(
    pipeline: Pipeline, requests: Iterable[Given], *, trace: Trace | None = None, traced: int = 0
) -> Iterator[Outcome]:
    """Stream requests through and yield what became of each, in their order. One that failed stops no other.

    Args:
        pipeline: open, and so far unused.
        requests: what to run.
        trace: an observer of the pipeline.
        traced: the number of the request that it is to watch, from 1.
    """
    order: deque[Given] = deque()

    def sent() -> Iterator[dict[str, Any]]:
        ran = 0
        for number, one in enumerate(requests, 1):
            order.append(one)
            if not isinstance(one.values, RequestFailed):
                ran += 1
                if trace is not None and number == traced:
                    trace.request_id = str(ran)  # as the pipeline numbers what it is given
                yield one.values

    for result in pipeline.batch(sent()):
        yield from _unsent(order)
        yield Outcome(order.popleft().label, result.table if result.ok else None, result.error)
    yield from _unsent(order)


def _unsent(order: deque[Given]) -> Iterator[Outcome]:
    while order and isinstance(order[0].values, RequestFailed):
        one = order.popleft()
        yield Outcome(one.label, None, one.values if isinstance(one.values, RequestFailed) else None)


def _value(name: str, text: str) -> str | bytes:
    if is_file_input(name):
        return read_picture(Path(text))
    if printable(text) != text:
        raise error_for(ErrorCode.BAD_REQUEST, "the text is not UTF-8")
    return text


def _object(inputs: Sequence[str], line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise error_for(ErrorCode.BAD_REQUEST, f"the line is no JSON: {error}") from None
    if not isinstance(found, dict) or not found or not found.keys() <= set(inputs):
        raise error_for(ErrorCode.BAD_REQUEST, f"the line must be an object with the keys {', '.join(inputs)}")
    return {name: _value(name, value) if isinstance(value, str) else value for name, value in found.items()}
