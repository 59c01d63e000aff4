"""The examples run as they stand."""

from __future__ import annotations

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


def run(*command: str) -> str:
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_batching_in_process() -> None:
    assert run(str(EXAMPLES / "batched_in_process.py")).startswith("one run for 3 callers")


def test_a_producer(redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path) -> None:
    with (
        LiteServer(tmp_path / "milvus") as milvus,
        WorkerProcess(redis_server.url, QueueKeys("clip"), model="demo", milvus_uri=milvus.uri),
    ):
        said = run(str(EXAMPLES / "producer.py"), redis_server.url)
    first, *hits = said.splitlines()
    assert first == "a vector of 256 numbers"
    assert len(hits) == 3


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_run_by_a_test(example: Path) -> None:
    assert example.name in (TESTS / "acceptance" / "test_examples.py").read_text(encoding="utf-8")
