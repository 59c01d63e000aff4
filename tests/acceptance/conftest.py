from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fixtures import keys, leftovers, make_proxy, make_redis, redis_binary, redis_client, redis_server
from support.fleet import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer

__all__ = ["keys", "leftovers", "make_proxy", "make_redis", "redis_binary", "redis_client", "redis_server"]


@pytest.fixture
def start_worker(redis_server: RedisServer, keys: QueueKeys, leftovers: None) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts real workers on the test's queue; all are gone when the test ends."""
    started: list[WorkerProcess] = []

    def start(*, ready: bool = True, **settings: Any) -> WorkerProcess:
        worker = WorkerProcess(redis_server.url, keys, **settings)
        started.append(worker)
        return worker.start(ready=ready)

    yield start
    for worker in started:
        worker.__exit__()
