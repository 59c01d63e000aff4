"""docs/operators.md: the table is what there is, and the code runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from clipfleet import operators

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
BLOCKS = [
    pytest.param(
        "\n" * PAGE.count("\n", 0, found.start(1)) + found[1], id=f"line-{PAGE.count(chr(10), 0, found.start())}"
    )
    for found in re.finditer(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]
# What a definition is made of and what clipfleet itself is made of: no operators.
OPERATORS = sorted(
    name for name in operators.__all__ if isinstance(getattr(operators, name), type) and name == name.lower()
)


def rows() -> dict[str, list[str]]:
    text = PAGE.replace(r"\|", "/")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in cells if len(row) == 4}


def test_every_operator_is_in_the_table_with_its_task_and_options():
    table = rows()
    assert sorted(table) == OPERATORS
    for name, (task, options, batches) in table.items():
        operator = getattr(operators, name)
        assert task.replace("→", "->").replace("/", "|") == operator.task
        assert re.findall(r"`(\w+)`", options) == [field.name for field in fields(operator)]
        assert (batches == "yes") == issubclass(operator, operators.BatchOperator)


@pytest.mark.parametrize("code", BLOCKS)
def test_each_piece_of_code_runs_as_it_stands(code, tmp_path, monkeypatch):
    for name in ("red-heart", "cat-face"):
        shutil.copy(ROOT / "examples" / "pictures" / f"{name}.png", tmp_path)
    shutil.copy(ROOT / "examples" / "data" / "things.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    # As a file of its own: this one's "from __future__" is not the page's.
    page = compile(code, str(ROOT / "docs" / "operators.md"), "exec", dont_inherit=True)
    exec(page, {"__name__": "__main__"})
