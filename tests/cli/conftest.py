from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from support.cli import Done, clean_environment
from support.fixtures import keys, make_redis, redis_binary, redis_server
from support.raw_worker import RawWorker
from support.warm import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer

__all__ = ["keys", "make_redis", "redis_binary", "redis_server"]


@pytest.fixture(autouse=True)
def log_handlers() -> Iterator[None]:
    """A command run in this process adds a handler for its own output, which ends with the test."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    root.handlers[:] = before


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Done]:
    """Run a command to its end: ``cli("embed", "a cat", stdin=b"", cwd=..., REDIS_URL=...)``."""

    def run(*args: str | bytes, stdin: bytes = b"", cwd: Path = tmp_path, timeout: float = 60, **env: str) -> Done:
        return run_command(args, stdin=stdin, cwd=cwd, timeout=timeout, env=clean_environment(**env))

    return run


@pytest.fixture
def fleet(redis_server: RedisServer, keys: QueueKeys) -> Iterator[dict[str, str]]:
    """Environment of a queue with a worker that gives toy vectors."""
    with RawWorker(redis_server.url, keys):
        yield {"CLIPFLEET_REDIS_URL": redis_server.url, "CLIPFLEET_QUEUE": keys.queue}
