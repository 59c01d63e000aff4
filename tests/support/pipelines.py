"""Pipelines that workers of the tests serve: ``support.pipelines:name``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from clipfleet import pipeline
from clipfleet.operators import Noted, clip_text
from clipfleet.pipeline import fields as field

if TYPE_CHECKING:
    from collections.abc import Iterator


def cut(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


# Each word of a text embedded by itself, then gathered.
words = (
    pipeline.input(text=field.text())
    .flat_map("text", "word", cut)
    .map("word", "vector", clip_text())
    .window_all(("word", "vector"), ("words", "count"), lambda words, vectors: (words, len(vectors)))
    .output("words", "count")
)

# The rows themselves go out.
rows = (
    pipeline.input(text=field.text())
    .flat_map("text", "word", cut)
    .map("word", "vector", clip_text())
    .output("word", "vector")
)


def double(numbers: list[int]) -> list[Any]:
    """Twice each number; not of 13."""
    if 13 in numbers:
        raise ValueError("not 13")
    return [2 * number for number in numbers]


twice = pipeline.input("n").map("n", "m", double, max_batch_size=32).output("m")


class Broken(dict[str, int]):
    """One that cannot be read any more, as of a file that is closed, and cannot even say so."""

    def items(self) -> Any:
        raise self.Closed

    def __iter__(self) -> Any:
        raise self.Closed

    class Closed(Exception):
        def __str__(self) -> str:
            raise ValueError("closed")


def strange(kind: str) -> Any:
    """What no result can carry."""
    inside: list[Any] = []
    inside.append(inside)
    kinds = {
        "itself": inside,
        "objects": np.array([object()]),
        "a set": {1},
        "broken": Broken(a=1),
        "no notes": Noted(1, cast("Any", None)),
        "notes of a set": Noted(1, {"a": {1}}),
        "broken notes": Noted(1, {"a": Broken(a=1)}),
        "fine": Noted(1, {"a": np.float32(1)}),
    }
    return kinds[kind]


unsendable = pipeline.input("kind").map("kind", "value", strange).output("value")
unsendable_at_once = pipeline.input("kind").map("kind", "value", strange, inline=True).output("value")


def slowly(text: str) -> Iterator[str]:
    """The words of a text; from ``wait`` on only once the file of that name is there; without end after ``endless``."""
    for word in text.split():
        if word.startswith("wait:"):
            Path(f"{word[5:]}.reached").touch()
            while not Path(word[5:]).exists():
                time.sleep(0.005)  # the test is another process
        yield word
        while word == "endless":
            yield ""


# A source of rows whose empty ones come to no stage.
stream = (
    pipeline.input("text")
    .flat_map("text", "word", slowly)
    .filter("word", bool, inline=True)
    .map("word", "length", lambda words: [len(word) for word in words], max_batch_size=4)
    .window_all(("word", "length"), ("words", "lengths"), lambda words, lengths: (words, lengths))
    .output("words", "lengths")
)


def once(path: str) -> str:
    """Hangs for whoever comes first; the next one finds the file that it left."""
    if not Path(path).exists():
        Path(path).touch()
        while True:
            time.sleep(60)
    return path


hanging = pipeline.input("path").map("path", "found", once).output("found")


def costly(numbers: list[int]) -> list[float]:
    """20 ms a call and 1 ms for each number: the cost of a model, known to the test; when it ended, in unix ms."""
    time.sleep(0.02 + 0.001 * len(numbers))
    return [time.time() * 1000] * len(numbers)


priced = pipeline.input("n").map("n", "at", costly, max_batch_size=16).output("at")
