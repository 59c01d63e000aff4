"""Redis has delivered, and the worker never heard of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clipfleet.producer import Client
from clipfleet.schemas.limits import GROUP
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.proxy import Proxy
    from support.redis_server import RedisServer

pytestmark = pytest.mark.chaos


def reads_blocked(client: redis.Redis) -> bool:
    return any(one["cmd"] == "xreadgroup" and "b" in one["flags"] for one in client.client_list())


def in_hand(client: redis.Redis, lane: str) -> int:
    return int(client.xpending(lane, GROUP)["pending"])


@pytest.mark.parametrize("lane", ["interactive", "bulk"])
def test_what_came_in_a_lost_reply_is_run_at_once_and_is_no_suspect(
    redis_server: RedisServer,
    redis_client: redis.Redis,
    make_proxy: Callable[[int], Proxy],
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    lane: str,
) -> None:
    proxy = make_proxy(redis_server.port)
    # Given a worker that is blocked in its read, for whom a request would wait for a minute and then be poisoned
    start_worker(redis_url=proxy.url, model="none", lease_ms=60_000, max_deliveries=1)
    with Client(redis_server.url, queue=keys.queue, timeout=30) as client:
        assert client.run("echo", {"data": 0}).ok
        wait_until(lambda: reads_blocked(redis_client), 10, "a blocked worker")
        # When it is delivered and the reply is lost
        proxy.stall(requests=False)
        job = client.submit("echo", {"data": 1}, lane=lane).accepted(10)
        wait_until(lambda: in_hand(redis_client, keys.base + lane) == 1, 10, "a delivery")
        proxy.cut()
        proxy.resume()
        # Then it is answered long before its lease ends
        assert job.result(20).outputs == {"data": 1}
        assert in_hand(redis_client, keys.base + lane) == 0
