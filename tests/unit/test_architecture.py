"""The rules of docs/design.md that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTIONS = [ROOT / portion / "clipfleet" for portion in ("schemas", "producer", "worker")]
SOURCES = sorted(path for portion in PORTIONS for path in portion.rglob("*.py"))
MOST_LINES, MOST_FUNCTION_LINES = 350, 45
# A command's options are its documentation, one to a line.
DECLARES_OPTIONS = "cli/commands"

# Whoever speaks Redis streams; everybody else asks these.
STREAM_MODULES = {
    "worker/clipfleet/worker/stream.py",
    "producer/clipfleet/producer/admission.py",
    "producer/clipfleet/producer/inbox.py",
    "producer/clipfleet/cli/queue.py",
}
STREAM_COMMANDS = re.compile(
    r"\b(X(ADD|READ|READGROUP|ACK|DEL|LEN|RANGE|CLAIM|AUTOCLAIM|PENDING|GROUP|INFO)|"
    r"x(add|read|readgroup|ack|del|len|range|revrange|claim|autoclaim|pending|pending_range|group_create|info_\w+))\b"
    r"(?=[\"'(])"
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_namespace_has_no_init_file() -> None:
    # One would hide the other portions of whoever installed them apart.
    assert [name(portion / "__init__.py") for portion in PORTIONS if (portion / "__init__.py").exists()] == []


def test_every_package_says_that_it_is_typed() -> None:
    packages = {path for portion in PORTIONS for path in portion.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert [name(path) for path in sorted(packages) if not (path / "py.typed").exists()] == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_and_functions_fit_a_readers_head(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    if DECLARES_OPTIONS in path.as_posix():
        return
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {node.name: length for node in functions if (length := _code_lines(node)) > MOST_FUNCTION_LINES}
    assert long == {}


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring: what must be said does not make it harder to read."""
    assert node.end_lineno is not None
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    doc = first.end_lineno - first.lineno + 1 if documented and first.end_lineno else 0
    return node.end_lineno - node.lineno + 1 - doc


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_keys_py_spells_a_key(path: Path) -> None:
    if name(path) == "schemas/clipfleet/schemas/keys.py":
        return
    strings = [
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    spelled = re.compile(r":(interactive|bulk|result|inbox|cancel|call|dead|bytes|workers|worker|fleet)(:|$)")
    assert [text for text in strings if spelled.search(text) and "\n" not in text] == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_stream_modules_speak_redis_streams(path: Path) -> None:
    if name(path) in STREAM_MODULES:
        return
    code = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.strip().startswith("#"))
    assert STREAM_COMMANDS.findall(code) == []
