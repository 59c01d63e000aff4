"""The helpers that all other tests rely on."""

from __future__ import annotations

import pytest
import redis

from clipfleet.schemas import scripts
from clipfleet.schemas.request import Request
from support.leaks import find_leaks
from support.raw_worker import RawWorker
from support.waiting import wait_until


def admit(client, keys, request_id="a", ttl_ms=60_000):
    script = scripts.load("admit").text
    message = Request(request_id, "echo", {"data": 1}).encode()
    return client.eval(
        script, 5, *keys.lanes, keys.fleet, keys.bytes, keys.call("p", 1), "interactive", request_id, ttl_ms, message
    )


@pytest.mark.parametrize(
    ("leave", "complaint"),
    [
        (lambda r, k: r.set(k.cancel("a"), 1), "has no TTL"),
        (lambda r, k: r.set("foreign", 1), "has no TTL"),
        (lambda r, k: r.set(k.bytes, 7, ex=100), "payload bytes are still counted"),
        (lambda r, k: r.xadd(k.lanes[1], {"m": b"x"}), "holds 1 entries"),
        (lambda r, k: r.xgroup_create(k.lanes[0], "others", mkstream=True), "a group of its own"),
    ],
)
def test_a_leak_is_named(redis_client, keys, leftovers, leave, complaint):
    leftovers.expected("the leak is the test")
    leave(redis_client, keys)
    assert complaint in "\n".join(find_leaks(redis_client))


def test_pending_entries_are_a_leak_even_when_the_lane_is_empty(redis_client, keys, leftovers):
    leftovers.expected("the leak is the test")
    lane = keys.lanes[0]
    redis_client.xgroup_create(lane, "workers", id="0", mkstream=True)
    stream_id = redis_client.xadd(lane, {"m": b"x"})
    redis_client.xreadgroup("workers", "w", {lane: ">"})
    redis_client.xdel(lane, stream_id)
    assert "pending" in "\n".join(find_leaks(redis_client))


def test_what_is_meant_to_stay_is_no_leak(redis_client, keys):
    redis_client.hset(keys.fleet, "v", 1)
    redis_client.zadd(keys.workers, {"w": 1})
    redis_client.xadd(keys.dead, {"error": "x"})
    redis_client.xgroup_create(keys.lanes[0], "workers", mkstream=True)
    redis_client.set(keys.result("a"), 1, ex=10)
    assert find_leaks(redis_client) == []


def test_the_raw_worker_answers_and_leaves_nothing(redis_server, redis_client, keys):
    admit(redis_client, keys)
    with RawWorker(redis_server.url, keys):
        wait_until(lambda: redis_client.llen(keys.result("a")), 5, "a result")
    assert find_leaks(redis_client) == []


def test_a_stalled_proxy_holds_the_reply_and_the_server_runs_the_command(redis_server, redis_client, make_proxy):
    proxy = make_proxy(redis_server.port)
    client = redis.Redis(port=proxy.port, socket_timeout=0.2, retry=None)
    client.ping()
    proxy.stall(requests=False)
    with pytest.raises(redis.exceptions.TimeoutError):
        client.rpush("l", 1)
    assert redis_client.llen("l") == 1
    client.close()
    proxy.resume()
    redis_client.delete("l")


def test_a_cut_proxy_loses_the_reply_of_a_command_that_ran(redis_server, redis_client, make_proxy):
    proxy = make_proxy(redis_server.port)
    client = redis.Redis(port=proxy.port, retry=None)
    client.ping()
    proxy.cut_after(2)
    with pytest.raises(redis.exceptions.ConnectionError):
        client.rpush("l", 1)
    assert redis_client.llen("l") == 1
    client.close()
    redis_client.delete("l")
