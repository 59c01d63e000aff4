from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from support.celery_worker import CeleryWorker
from support.fixtures import keys, leftovers, make_redis, redis_binary, redis_client, redis_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer

__all__ = ["keys", "leftovers", "make_redis", "redis_binary", "redis_client", "redis_server"]


@pytest.fixture
def environment(redis_server: RedisServer, keys: QueueKeys) -> dict[str, str]:
    return {"REDIS_URL": redis_server.url, "CLIPFLEET_QUEUE": keys.queue}


@pytest.fixture
def start_celery(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., CeleryWorker]]:
    """Starts Celery workers in the test's folder; all are killed when it ends."""
    with ExitStack() as stack:

        def start(*args: str, **more: str) -> CeleryWorker:
            return stack.enter_context(CeleryWorker(tmp_path, environment | more, *args))

        yield start


@pytest.fixture
def app(redis_server: RedisServer) -> Iterator[Celery]:
    """Somebody else's Celery app, which has the broker's address and nothing of ours."""
    made = Celery("shop", broker=f"{redis_server.url}/1", backend=f"{redis_server.url}/1", set_as_current=False)
    made.conf.task_routes = {"clipfleet.*": {"queue": "clipfleet"}}
    yield made
    made.close()
