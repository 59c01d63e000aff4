"""The seventy questions and what counts as an answer. Standard library alone: the tests use it too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def questions() -> list[dict[str, Any]]:
    """Return the seventy questions, the README's ten first."""
    text = (Path(__file__).parent / "questions.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["question"])


def accepted(question: dict[str, Any], concepts: Sequence[dict[str, Any]]) -> set[int]:
    """Return the numbers of the concepts (``label``, ``subgroup``) that are the right kind for a question."""
    names, subgroups = set(question.get("names", ())), set(question.get("subgroups", ()))
    words = [re.compile(rf"\b{re.escape(m)}\b") for m in question.get("match", ())]
    out = set(question.get("except", ()))
    return {
        i
        for i, c in enumerate(concepts)
        if c["label"] not in out
        and (c["label"] in names or c["subgroup"] in subgroups or any(w.search(c["label"]) for w in words))
    }
