"""docs/pipelines.md does what it says: its Python runs, and its commands print what stands below them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.cli import clean_environment
from support.fleet import TESTS
from support.pages import examples

if TYPE_CHECKING:
    import pytest

ROOT = TESTS.parent
PAGE = ROOT / "docs" / "pipelines.md"
PICTURES = ("cat.png", "red-heart.png", "ambulance.png")


def test_given_the_page_when_its_code_is_run_in_order_then_it_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for picture in PICTURES:
        shutil.copy(ROOT / "examples" / "pictures" / picture, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = [block for under in examples(PAGE).values() for block in under]
    assert {block.language for block in blocks} == {"python", "console"}
    try:
        for block in blocks:
            if block.file:
                Path(block.file).write_text(block.code)
            if block.language == "python":
                exec(compile(block.code, str(PAGE), "exec"), {"__name__": "page"})
            else:
                run_console(block.code)
    finally:
        shop = sys.modules.pop("shop", None)
        for pipeline in (shop.features, shop.parts, shop.shout) if shop else ():
            pipeline.close()


def run_console(session: str) -> None:
    """Each ``$ command`` and the lines that it must print; ``…`` stands for anything in a line."""
    for command, said in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ran = subprocess.run(
            ["bash", "-euc", command],
            env=clean_environment(PATH=path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        printed, wanted = ran.stdout.splitlines(), said.splitlines()
        assert len(printed) == len(wanted), f"$ {command}\n{ran.stdout}"
        for line, pattern in zip(printed, wanted, strict=True):
            matcher = re.escape(pattern).replace("…", ".*")
            if "…" in pattern:
                matcher = re.sub(r"(\\ )+", r"\\s+", matcher)
            assert re.fullmatch(matcher, line), f"$ {command}\n{ran.stdout}"
