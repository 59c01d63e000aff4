from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.store.lite import LiteServer
from support.fixtures import keys, leftovers, make_proxy, make_redis, redis_binary, redis_client, redis_server
from support.fleet import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer

__all__ = ["keys", "leftovers", "make_proxy", "make_redis", "redis_binary", "redis_client", "redis_server"]


@pytest.fixture
def start_worker(redis_server: RedisServer, keys: QueueKeys, leftovers: None) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts real workers on the test's queue, on the shared server or on ``url``; all are gone when the test ends."""
    started: list[WorkerProcess] = []

    def start(*, ready: bool = True, url: str = redis_server.url, **settings: Any) -> WorkerProcess:
        worker = WorkerProcess(url, keys, **settings)
        started.append(worker)
        return worker.start(ready=ready)

    yield start
    for worker in started:
        worker.__exit__()


@pytest.fixture(scope="session")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteServer]:
    """One Milvus Lite for all tests that do it no harm; each has collections of its own."""
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server


@pytest.fixture
def collection(counter: itertools.count[int] = itertools.count()) -> str:  # noqa: B008  (one count for all tests)
    """A name that no other test uses."""
    return f"chaos{next(counter)}"
