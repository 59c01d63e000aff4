from __future__ import annotations

import pytest

from clipfleet.producer import Client
from support.fixtures import keys, leftovers, make_proxy, make_redis, redis_binary, redis_client, redis_server
from support.raw_worker import RawWorker
from support.waiting import wait_until
from support.worker_steps import stepping

__all__ = ["keys", "leftovers", "make_proxy", "make_redis", "redis_binary", "redis_client", "redis_server", "stepping"]


@pytest.fixture
def worker(redis_server, redis_client, keys):
    with RawWorker(redis_server.url, keys) as raw:
        wait_until(lambda: redis_client.zcard(keys.workers), 5, "the worker's presence")
        yield raw


@pytest.fixture
def client(redis_server, keys):
    with Client(redis_server.url, queue=keys.queue, timeout=10) as made:
        yield made
