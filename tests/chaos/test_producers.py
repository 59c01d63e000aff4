"""Points 9 and 10: producers that die, share, idle, cancel and lag; clocks that are wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from chaos.checks import LEASE_MS, at_rest
from clipfleet.producer import AsyncClient, Client, Expired, requests
from support.fleet import TESTS
from support.raw_worker import RawWorker
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

pytestmark = pytest.mark.chaos

# A producer process: argv URL QUEUE COUNT; says its pid's inbox once all is accepted, then waits for answers for ever.
PRODUCER = """
import sys, time
from clipfleet.producer import Client
client = Client(sys.argv[1], queue=sys.argv[2], timeout=60, wait_for_worker=True)
jobs = [client.submit("echo", {"data": n}).accepted(30) for n in range(int(sys.argv[3]))]
print("accepted", flush=True)
print([job.result().outputs["data"] for job in jobs], flush=True)
sys.stdin.read()
"""


def producer(url: str, queue: str, count: int, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + PRODUCER, url, queue, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
    )


def inboxes(client: redis.Redis, keys: QueueKeys) -> list[bytes]:
    return sorted(client.scan_iter(match=f"{keys.base}inbox:*"))


def test_a_producer_that_dies_leaves_an_inbox_that_expires_and_harms_nobody(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a producer that is killed with fifty requests outstanding
    with producer(redis_server.url, keys.queue, 50) as dying:
        assert dying.stdout.readline() == "accepted\n"
        assert redis_client.xlen(keys.lanes[0]) == 50
        dying.kill()
    # When they are run
    worker = start_worker(model="none", lease_ms=LEASE_MS)
    wait_until(lambda: redis_client.xlen(keys.lanes[0]) == 0, 20, "all settled")
    # Then their results lie in its inbox, which goes by itself within a minute of the last of them
    (inbox,) = inboxes(redis_client, keys)
    assert redis_client.llen(inbox) == 50
    assert 0 < redis_client.pttl(inbox) <= 60_000
    # and others are served as before
    with Client(redis_server.url, queue=keys.queue) as client:
        assert client.run("echo", {"data": 1}).ok
    at_rest(redis_client, keys, [worker])


def test_replicas_of_a_service_never_share_an_inbox(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given four processes of one program under one user
    replicas = [producer(redis_server.url, keys.queue, 50) for _ in range(4)]
    try:
        assert [one.stdout.readline() for one in replicas] == ["accepted\n"] * 4
        worker = start_worker(model="none", lease_ms=LEASE_MS)
        # Then each gets its own results, all of them and in full
        assert [one.stdout.readline() for one in replicas] == [f"{list(range(50))}\n"] * 4
        at_rest(redis_client, keys, [worker])
    finally:
        for one in replicas:
            one.kill()
            one.communicate()


def test_a_client_idle_for_longer_than_its_inbox_lives_is_answered_at_once(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    """Ten minutes pass at once: the server forgets the scripts, the inbox and the connections of an idle client."""
    worker = start_worker(model="none", lease_ms=LEASE_MS)
    with Client(redis_server.url, queue=keys.queue, timeout=10) as client:
        assert client.run("echo", {"data": 1}).ok
        for one in redis_client.client_list():
            if one["name"] == "clipfleet-producer":
                redis_client.client_kill_filter(_id=one["id"])
        redis_client.script_flush()
        redis_client.delete(*inboxes(redis_client, keys) or ["nothing"])
        began = time.monotonic()
        assert client.run("echo", {"data": 2}).outputs == {"data": 2}
        assert time.monotonic() - began < 2
    at_rest(redis_client, keys, [worker])


def test_cancelled_awaits_poison_no_connection(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker(model="none", lease_ms=LEASE_MS)

    async def storm() -> list[int]:
        async with AsyncClient(redis_server.url, queue=keys.queue, timeout=30) as client:
            await client.run("echo", {"data": -1})
            # Given calls of which every other one is cancelled at some point of its way
            tasks = [asyncio.ensure_future(client.run("echo", {"data": n})) for n in range(400)]
            for number, task in enumerate(tasks):
                if number % 2:
                    for _ in range(number % 7):
                        await asyncio.sleep(0)  # one turn of the loop further on its way
                    task.cancel()
            # Then each of the others gets its own answer
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            kept = [one.outputs["data"] for one in outcomes[::2]]
            assert (await client.run("echo", {"data": 1000})).outputs == {"data": 1000}
            return kept

    assert asyncio.run(storm()) == list(range(0, 400, 2))
    at_rest(redis_client, keys, [worker])


def test_a_slow_consumer_of_results_stops_no_other_producer(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker(model="none", lease_ms=LEASE_MS)
    with (
        Client(redis_server.url, queue=keys.queue, timeout=60) as slow,
        Client(redis_server.url, queue=keys.queue, timeout=10) as quick,
    ):
        # Given a consumer that took one result of 500 and looks at no other
        results = slow.map((requests.echo(n) for n in range(500)), max_in_flight=500)
        assert next(results).ok
        # Then others are answered
        assert all(quick.run("echo", {"data": n}).ok for n in range(50))
        # and its own are there when it goes on
        assert [one.outputs["data"] for one in results] == list(range(1, 500))
    at_rest(redis_client, keys, [worker])


HOUR_OFF = """
import time
real = time.time
time.time = lambda: real() + {seconds}
time.time_ns = lambda: int((real() + {seconds}) * 10**9)
"""


@pytest.mark.parametrize("seconds", [3600, -3600], ids=["ahead", "behind"])
def test_a_producer_whose_clock_is_an_hour_off_is_served_like_any_other(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, seconds: int
) -> None:
    with producer(redis_server.url, keys.queue, 3, HOUR_OFF.format(seconds=seconds)) as off:
        assert off.stdout.readline() == "accepted\n"
        # Given what it sent: the deadline is a minute from now by the server's clock
        server_ms = int(redis_client.time()[0]) * 1000
        for _, fields in redis_client.xrange(keys.lanes[0]):
            assert 0 < int(fields[b"d"]) - server_ms <= 61_000
        with RawWorker(redis_server.url, keys):
            assert off.stdout.readline() == "[0, 1, 2]\n"
        off.kill()


def test_a_worker_whose_clock_is_an_hour_off_keeps_the_servers_deadlines(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given one request whose time is over by the server's clock, and one that has a minute
    with Client(redis_server.url, queue=keys.queue, wait_for_worker=True) as client:
        late = client.submit("echo", {"data": 1}, timeout=0.2).accepted(5)
        with pytest.raises(Expired):
            late.result()
        early = client.submit("echo", {"data": 2}, timeout=60).accepted(5)
        worker = start_worker(hooks="support.hooks:WrongClock", model="none")
        assert early.result(20).outputs == {"data": 2}
    wait_until(lambda: redis_client.xlen(keys.lanes[0]) == 0, 10, "both settled")
    at_rest(redis_client, keys, [worker])


def test_many_producers_die_while_one_goes_on(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker(model="none", lease_ms=LEASE_MS)
    stop, answered = threading.Event(), []

    def steady() -> None:
        with Client(redis_server.url, queue=keys.queue, timeout=30) as client:
            while not stop.is_set():
                answered.append(client.run("echo", {"data": len(answered)}).outputs["data"])

    going = threading.Thread(target=steady)
    going.start()
    for _ in range(3):
        with producer(redis_server.url, keys.queue, 100) as dying:
            dying.stdout.readline()
            dying.kill()
    stop.set()
    going.join(40)
    assert not going.is_alive()
    assert answered == list(range(len(answered)))
    at_rest(redis_client, keys, [worker])
