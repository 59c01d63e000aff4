"""Point 13: Redis 6.2, the one here and 8; a cluster of three with a slot that moves; requests of other releases."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from redis.cluster import RedisCluster

from chaos.checks import LEASE_MS, answers, at_rest, texts
from chaos.servers import RELEASES, Cluster, binary
from clipfleet.producer import Client, requests
from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.limits import GROUP
from clipfleet.schemas.result import decode_result
from support.fleet import TESTS, WorkerProcess, admit, results
from support.redis_server import RedisServer
from support.script_queue import ScriptQueue
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module", params=RELEASES)
def path(request: pytest.FixtureRequest) -> str:
    return binary(request.param)


@pytest.fixture
def server(path: str) -> Iterator[RedisServer]:
    with RedisServer(path) as started:
        yield started


def reads_blocked(client: redis.Redis) -> bool:
    return any(one["cmd"] == "xreadgroup" and "b" in one["flags"] for one in client.client_list())


def test_a_life_on_each_release_of_redis(
    server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    waits = {"wait_for_worker": True, "timeout": 30}  # FLUSHALL takes the workers' presence for a second too
    with server.client() as redis_client, Client(server.url, queue=keys.queue, **waits) as client:
        worker = start_worker(url=server.url, hooks="support.hooks:Barrier", lease_ms=LEASE_MS)
        # Served
        assert [one.outputs["data"] for one in client.map(requests.echo(n) for n in range(300))] == list(range(300))
        # The group taken away under a blocked reader, in the words of this release
        wait_until(lambda: reads_blocked(redis_client), 10, "a blocked worker")
        redis_client.xgroup_destroy(keys.lanes[0], GROUP)
        assert client.run("echo", {"data": 1}, timeout=10).ok
        assert any(word in worker.log for word in ("UNBLOCKED", "NOGROUP"))
        # Killed in its call, with no memory left in Redis, and another that starts only then
        worker.hold("call")
        asked = texts(20)
        admit(redis_client, keys, asked)
        worker.reached("call")
        redis_client.config_set("maxmemory", 1)
        worker.kill_all()
        second = start_worker(url=server.url, lease_ms=LEASE_MS, ready=False)
        assert all(result.ok for result in answers(redis_client, keys, asked, 60).values())
        redis_client.config_set("maxmemory", 0)
        second.await_ready()
        # Everything flushed
        wait_until(lambda: reads_blocked(redis_client), 10, "a blocked worker")
        redis_client.flushall()
        assert client.run("echo", {"data": 2}, timeout=10).ok
        at_rest(redis_client, keys, [second])


def test_every_script_runs_on_the_node_that_holds_the_queue_in_a_cluster_of_three(path: str, keys: QueueKeys) -> None:
    """A single node accepts keys of every slot; three do not, nor do they accept undeclared ones elsewhere."""
    with Cluster(path) as cluster:
        node = cluster.nodes[cluster.owner(keys.fleet)]
        with RedisCluster(host="127.0.0.1", port=node.port) as client:
            queue = ScriptQueue(client, keys)
            queue.group()
            assert queue.heartbeat("w1") > 0
            assert queue.join("w1", capacity=100) == []
            first, second, third = queue.delivered(1, 2, 3)
            assert queue.renew("w1", first, second, third) == []
            assert queue.handback("w1", (second, 0)) == 1
            assert queue.settle(first, size=1, result=b"r", owner="w1") == 1
            assert [one for one, _ in queue.reclaim("w2")[2]] == [second]
            assert queue.settle(second, size=2, owner="w2", dead=("id", "a")) == 1
            assert queue.settle(third, size=3) == 1
            assert queue.leave("w1") == 0
            assert queue.lengths() == (0, 0)
            assert queue.bytes_held() is None
            # and whatever a script touched lies on that one node
            others = [one for number, one in enumerate(cluster.clients) if number != cluster.owner(keys.fleet)]
            assert [one.dbsize() for one in others] == [0, 0]


def test_a_slot_that_moves_under_load_loses_and_doubles_nothing(
    path: str, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    with Cluster(path) as cluster:
        source = cluster.owner(keys.fleet)
        target, other = (source + 1) % 3, (source + 2) % 3
        # Given a worker and a client that know one node each, neither of them the one that holds the queue
        worker = start_worker(url=cluster.nodes[target].url, model="none", lease_ms=LEASE_MS, ready=False)
        answered: list[int] = []
        enough = threading.Event()

        def endless() -> Iterator[Any]:
            number = 0
            while not enough.is_set():
                yield requests.echo(number)
                number += 1

        failures: list[object] = []

        def load() -> None:
            with Client(cluster.nodes[other].url, queue=keys.queue, timeout=60, wait_for_worker=True) as client:
                for result in client.map(endless(), max_in_flight=64):
                    answered.append(result.outputs["data"]) if result.ok else failures.append(result.error)

        loading = threading.Thread(target=load)
        loading.start()
        try:
            wait_until(lambda: len(answered) > 500, 60, "a load that flows")
            # When the slot moves to another node, with all that is queued and leased
            assert cluster.move(keys.fleet, target) >= 3
            # Then it flows on
            so_far = len(answered)
            wait_until(lambda: len(answered) > so_far + 500, 60, "a load that flows on")
        finally:
            enough.set()
            loading.join(70)
        assert not failures
        assert answered == list(range(len(answered)))
        assert cluster.client(source).dbsize() == 0
        at_rest(cluster.client(target), keys, [_with_client(worker, cluster.client(target))])


def _with_client(worker: WorkerProcess, client: redis.Redis) -> WorkerProcess:
    """The worker as seen through the node that holds its queue now."""
    worker._client.close()
    worker._client = client
    return worker


@pytest.fixture
def keys_of_clip() -> QueueKeys:
    return QueueKeys("clip")


def test_requests_of_the_first_release_are_answered_and_a_future_one_is_told_so(
    redis_server: RedisServer, redis_client: redis.Redis, keys_of_clip: QueueKeys
) -> None:
    keys = keys_of_clip  # the golden requests name its keys
    golden = json.loads((TESTS / "golden" / "wire" / "v1.json").read_text())
    # Given what producers of the first release send, byte by byte, and a major version that nobody knows yet
    sent = [case for case in golden if case["kind"] == "request"]
    for case in sent:
        redis_client.xadd(keys.lanes[0], {"m": bytes.fromhex(case["hex"])})
    future = {"v": 2, "id": "future", "reply_to": keys.result("future"), "reply_ttl": 60_000, "shape": ["unknown"]}
    redis_client.xadd(keys.lanes[0], {"m": msgpack.packb(future)})
    with WorkerProcess(redis_server.url, keys, lease_ms=LEASE_MS) as worker:
        wait_until(lambda: redis_client.xlen(keys.lanes[0]) == 0, 20, "all settled")
        # Then each has its answer where it asked for it, and the future one is answered by its envelope
        for case in sent:
            raws = redis_client.lrange(case["answer_to"]["key"], 0, -1)
            assert case["decoded"]["id"] in {decode_result(raw).id for raw in raws}, case["name"]
        (raw,) = results(redis_client, keys, ["future"])["future"]
        assert decode_result(raw).error.code is ErrorCode.BAD_REQUEST
        assert decode_result(redis_client.lindex(keys.result("hello-1"), 0)).ok
        assert len(sent) > 5
        redis_client.delete(keys.dead)
        at_rest(redis_client, keys, [worker])
