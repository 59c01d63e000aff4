"""The examples, and those of the README, run as they stand."""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clipfleet.schemas.keys import QueueKeys
from clipfleet.store.lite import LiteServer
from support.fleet import TESTS, WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from support.redis_server import RedisServer

EXAMPLES = TESTS.parent / "examples"
README = (TESTS.parent / "README.md").read_text(encoding="utf-8")
OF_THE_README = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run(*command: str, cwd: Path | None = None) -> str:
    ran = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_batching_in_process() -> None:
    assert run(str(EXAMPLES / "batched_in_process.py")).startswith("one run for 3 callers")


def test_a_producer_and_the_readmes(redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path) -> None:
    with (
        LiteServer(tmp_path / "milvus") as milvus,
        WorkerProcess(redis_server.url, QueueKeys("clip"), model="demo", milvus_uri=milvus.uri),
    ):
        said = run(str(EXAMPLES / "producer.py"), redis_server.url)
        readme = tmp_path / "of_the_readme.py"
        # As it stands, but for the address and the number of things.
        code = (
            OF_THE_README[0].replace("redis://localhost:6379", redis_server.url).replace("range(100_000)", "range(300)")
        )
        readme.write_text(code, encoding="utf-8")
        shutil.copy(next((EXAMPLES / "pictures").rglob("*.png")), tmp_path / "heart.png")
        found = run(str(readme), cwd=tmp_path)
    first, *hits = said.splitlines()
    assert first == "a vector of 256 numbers"
    assert len(hits) == 3
    assert redis_server.url in code
    assert "range(300)" in code
    assert "  heart  {'year': 2026}" in found


def test_the_readmes_batching_in_process() -> None:
    given = {"load_model": lambda: lambda batch: [2 * x for x in batch], "x": 21}
    code = compile(OF_THE_README[1], "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def main() -> None:
        await eval(code, given)

    asyncio.run(main())
    assert given["predict"].call(4) == 8
    assert len(OF_THE_README) == 2


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_run_by_a_test(example: Path) -> None:
    assert example.name in (TESTS / "acceptance" / "test_examples.py").read_text(encoding="utf-8")
