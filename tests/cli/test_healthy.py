"""The images' health check."""

from __future__ import annotations

import json
import platform
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.cli.healthy import main

if TYPE_CHECKING:
    from pathlib import Path


def status(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int) -> None:
    """Make the interpreter answer so, whatever it is asked."""
    (folder / "answer").write_text(text)
    tool = folder / "python3"
    tool.write_text(f"#!/bin/sh\ncat {folder}/answer\necho 'Redis does not answer' >&2\nexit {code}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tool))


def workers(*them: dict[str, Any]) -> str:
    return json.dumps({"workers": list(them)})


HERE = {"host": platform.node(), "alive": True}


@pytest.mark.parametrize("others", [[], [{"host": "elsewhere", "alive": True}], [{"alive": False}]])
def test_given_a_living_worker_of_this_container_when_asked_then_healthy(tmp_path, monkeypatch, others):
    status(tmp_path, monkeypatch, workers(*others, HERE), 0)
    assert main() is None


@pytest.mark.parametrize(
    ("there", "code"),
    [([], 4), ([{**HERE, "alive": False}], 4), ([{"host": "elsewhere", "alive": True}], 0), ([{"alive": True}], 0)],
)
def test_given_no_living_worker_of_this_container_when_asked_then_not(tmp_path, monkeypatch, there, code):
    status(tmp_path, monkeypatch, workers(*there), code)
    assert main() == f"no worker of {platform.node()} is alive"


def test_given_no_answer_when_asked_then_what_was_said(tmp_path, monkeypatch):
    status(tmp_path, monkeypatch, "", 4)
    assert main() == "Redis does not answer"
