"""Point 5: Redis at maxmemory, connections cut after the server's reply, and a server that would evict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chaos.checks import LEASE_MS, answers, at_rest, echoes, pending, texts
from clipfleet.producer import Client, QueueFull, requests
from support.fleet import admit
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.proxy import Proxy
    from support.redis_server import RedisServer

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("worker", ["lives", "starts only then", "was killed with work in hand"])
def test_a_full_queue_on_a_full_redis_drains(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, start_worker: Callable[..., WorkerProcess], worker: str
) -> None:
    server = make_redis()
    settings = {"url": server.url, "lease_ms": LEASE_MS, "hooks": "support.hooks:Barrier"}
    with server.client() as redis_client:
        first = start_worker(**settings)
        if worker == "starts only then":
            assert first.terminate() == 0
        else:
            first.hold("call")
        # Given 200 requests waiting or in flight
        asked = texts(200)
        assert admit(redis_client, keys, asked)[0] == 200
        if worker != "starts only then":
            first.reached("call")
            assert len(pending(redis_client, keys)) > 0
        # When Redis has no memory left
        redis_client.config_set("maxmemory", 1)
        # Then one more is refused as by a full queue
        refused = admit(redis_client, keys, texts(1, "more"))
        assert (refused[0], refused[3]) == (0, [b"queue_full"])
        with Client(server.url, queue=keys.queue, timeout=20, wait_for_worker=True) as client:
            with pytest.raises(QueueFull):
                client.embed_text("more")
            dead: set[str] = set()
            if worker == "was killed with work in hand":
                dead = set(first.names)
                first.kill_all()
            # and a worker, one that starts only now too, empties the queue
            last = first if worker == "lives" else start_worker(**settings, ready=False)
            first.release("call")
            found = answers(redis_client, keys, asked, 60)
            assert all(result.ok for result in found.values())
            assert pending(redis_client, keys) == {}
            # and with memory again everything goes on by itself
            redis_client.config_set("maxmemory", 0)
            assert client.embed_text("after").ok
        last.await_ready()
        at_rest(redis_client, keys, [last], dead=dead)


def test_a_thousand_connections_cut_after_the_servers_reply_lose_no_result(
    redis_server: RedisServer,
    redis_client: object,
    keys: QueueKeys,
    make_proxy: Callable[[int], Proxy],
    start_worker: Callable[..., WorkerProcess],
) -> None:
    """A thousand on the client's side, and more on the worker's, somewhere within what the server had to say."""
    near_client, near_worker = make_proxy(redis_server.port), make_proxy(redis_server.port)
    worker = start_worker(url=near_worker.url, model="none", lease_ms=LEASE_MS)
    seen = rounds = 0
    with Client(near_client.url, queue=keys.queue, timeout=60, wait_for_worker=True) as client:
        while near_client.cuts < 1_000:
            rounds += 1
            near_client.cut_after(rounds * 37 % 1_500)
            if rounds % 300 == 0:  # what was on its way to the worker comes back only when its lease is over
                near_worker.cut_after(rounds * 37 % 500)
            numbers = range(seen, seen + 32)
            for number, result in zip(numbers, client.map(requests.echo(n) for n in numbers), strict=True):
                assert result.ok, result.error
                assert result.outputs["data"] == number
            seen += 32
    assert near_worker.cuts >= 3
    assert rounds < 1_500
    assert "Traceback" not in worker.log
    at_rest(redis_client, keys, [worker])


def test_a_server_that_would_evict_is_refused(
    make_redis: Callable[..., RedisServer], start_worker: Callable[..., WorkerProcess], keys: QueueKeys
) -> None:
    server = make_redis(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    worker = start_worker(url=server.url, model="none", ready=False)
    assert worker.process.wait(30) == 1
    assert "maxmemory-policy allkeys-lru" in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_that_dies_on_a_full_redis_leaves_nothing_behind(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    """Removing a consumer is a write that needs no memory, and must not be refused for the lack of it."""
    server = make_redis()
    with server.client() as redis_client:
        worker = start_worker(url=server.url, model="none", lease_ms=LEASE_MS)
        gone = worker.names[0]
        admit(redis_client, keys, echoes(5))
        answers(redis_client, keys, echoes(5))
        redis_client.config_set("maxmemory", 1)
        worker.child().kill()
        wait_until(lambda: gone not in worker.names, 20, "the dead one's name gone")
        redis_client.config_set("maxmemory", 0)
        worker.await_ready()
        at_rest(redis_client, keys, [worker])
