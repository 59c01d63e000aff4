"""Coming from elsewhere: each line of those pages has an example, and the examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cli import clean_environment
from support.fleet import TESTS
from support.pages import examples, links
from support.raw_worker import RawWorker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.schemas.keys import QueueKeys
    from support.pages import Block
    from support.redis_server import RedisServer

PAGES = sorted((TESTS.parent / "docs" / "howto").glob("from-*.md"))
EXAMPLES = [
    pytest.param(page, name, blocks, id=f"{page.stem}-{name}")
    for page in PAGES
    for name, blocks in examples(page).items()
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in, whose modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_given_a_page_when_its_table_is_read_then_every_line_has_an_example(page: Path) -> None:
    there = examples(page)
    wanted = links(page)
    assert len(wanted) > 10
    for line, name in enumerate(wanted, 1):
        assert there.get(name), f"line {line} of {page.name} has no example"
    assert set(there) == set(wanted), "an example that no line of the table names"


@pytest.mark.parametrize(("page", "name", "blocks"), EXAMPLES)
def test_given_an_example_when_run_then_it_does_what_it_says(
    page: Path,
    name: str,
    blocks: list[Block],
    folder: Path,
    redis_server: RedisServer,
    keys: QueueKeys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = {"CLIPFLEET_REDIS_URL": redis_server.url, "CLIPFLEET_QUEUE": keys.queue}
    for variable, value in fleet.items():
        monkeypatch.setenv(variable, value)
    names: dict[str, object] = {"__name__": f"example_{name}"}
    with RawWorker(redis_server.url, keys):
        for block in blocks:
            if block.file:
                Path(folder, block.file).write_text(block.code)
            if block.language == "python":
                exec(compile(block.code, str(page), "exec"), names)
            else:
                run_shell(block.code, fleet)


def run_shell(code: str, fleet: dict[str, str]) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = ["bash", "-euc", code]
    ran = subprocess.run(shell, env=clean_environment(PATH=path, **fleet), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
