from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from security.servers import DEPLOY, SELECTORS, Guarded, bundled, make_certificates, make_users, release
from support.cli import Done, clean_environment
from support.fixtures import keys, make_redis, redis_binary, skip_or_fail
from support.fleet import WorkerProcess
from support.redis_server import RedisServer
from support.warm import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from clipfleet.schemas.keys import QueueKeys

__all__ = ["keys", "make_redis", "redis_binary"]


@pytest.fixture(params=["users.acl", "users-6.2.acl"])
def guarded(request: pytest.FixtureRequest, redis_binary: str, tmp_path: Path, keys: QueueKeys) -> Iterator[Guarded]:
    """A server that lets in the users of ``keys``' queue alone: with selectors (7.0 and later), and without."""
    selectors = request.param == "users.acl"
    fitting = [one for one in (redis_binary, bundled()) if one and (release(one) >= SELECTORS) == selectors]
    if not fitting:
        skip_or_fail(f"no redis-server for {request.param}")
    made = make_users(
        tmp_path / "passwords",
        *("--queue", keys.queue, "--from", str(DEPLOY / request.param), "--producer", "shop", "--producer", "mail"),
    )
    assert made.returncode == 0, made.stderr
    (tmp_path / "users.acl").write_text(made.stdout)
    with RedisServer(fitting[0], aclfile=tmp_path / "users.acl") as server:
        yield Guarded(server, tmp_path / "passwords", keys, selectors)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a CA's own, a server's and a client's certificate, and those of another CA."""
    if shutil.which("openssl") is None:
        skip_or_fail("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.fixture
def start_worker(keys: QueueKeys) -> Iterator[Callable[..., WorkerProcess]]:
    """``start_worker(url, watcher, **settings)``: real workers, watched over a connection with other rights."""
    started: list[WorkerProcess] = []

    def start(url: str, watcher: redis.Redis, **settings: Any) -> WorkerProcess:
        worker = WorkerProcess(url, keys, **settings)
        worker._client.close()
        worker._client = watcher
        started.append(worker)
        return worker.start()

    yield start
    for worker in started:
        worker.__exit__()


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Done]:
    """The real command, to its end: ``cli("status", REDIS_URL=...)``."""

    def run(*args: str, timeout: float = 60, **env: str) -> Done:
        return run_command(args, cwd=tmp_path, timeout=timeout, env=clean_environment(**env) | {"OMP_NUM_THREADS": "1"})

    return run
