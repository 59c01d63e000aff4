"""Pipelines that workers of the tests serve: ``support.pipelines:name``."""

from __future__ import annotations

from typing import Any

from clipfleet import pipeline
from clipfleet.operators import clip_text
from clipfleet.pipeline import fields as field


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
