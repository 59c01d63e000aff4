"""Point 4: Redis flushed, restarted and failed over under blocked workers and clients."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from chaos.checks import LEASE_MS, at_rest
from clipfleet.producer import Client, RequestFailed
from clipfleet.schemas.limits import GROUP
from support.redis_server import HOST
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.producer import Job
    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.proxy import Proxy
    from support.redis_server import RedisServer

pytestmark = pytest.mark.chaos


def log_lines(worker: WorkerProcess) -> int:
    return worker.log.count("\n")


def reads_blocked(client: redis.Redis) -> bool:
    return any(one["cmd"] == "xreadgroup" and "b" in one["flags"] for one in client.client_list())


def point(address: Proxy, port: int) -> None:
    """Another server answers behind the same address from now on."""
    address._target = (HOST, port)
    address.cut()


def outcome(job: Job) -> str:
    """``ok`` or the code of the error that its caller gets."""
    try:
        return "ok" if job.result(60).ok else "error"
    except RequestFailed as error:
        return str(error.code)


def test_flushall_and_group_destroyed_under_blocked_readers(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    server = make_redis()
    with (
        server.client() as redis_client,
        Client(server.url, queue=keys.queue, wait_for_worker=True, timeout=20) as client,
    ):
        worker = start_worker(url=server.url, model="none", lease_ms=LEASE_MS)
        assert client.run("echo", {"data": 0}).ok
        for number, harm in enumerate(
            (redis_client.flushall, lambda: redis_client.xgroup_destroy(keys.lanes[0], GROUP))
        ):
            # Given a worker and a client that are blocked on Redis
            wait_until(lambda: reads_blocked(redis_client), 10, "a blocked worker")
            before, since = log_lines(worker), time.monotonic()
            # When everything is flushed, or the group goes
            harm()
            # Then the next call is answered without anybody's help
            assert client.run("echo", {"data": number}, timeout=10).outputs == {"data": number}
            # and the log stays quiet
            assert log_lines(worker) - before <= 4 + (time.monotonic() - since)
        wait_until(lambda: redis_client.exists(keys.fleet) and worker.names, 10, "the fleet written again")
        at_rest(redis_client, keys, [worker])


def asked(client: Client, count: int, timeout: float) -> list[Job]:
    jobs = [client.submit("echo", {"data": n}, timeout=timeout) for n in range(count)]
    for job in jobs:
        job.accepted(20)
    return jobs


def test_a_restart_with_aof_always_loses_nothing(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    server = make_redis(appendonly="yes", appendfsync="always")
    with server.client() as redis_client, Client(server.url, queue=keys.queue, timeout=60) as client:
        worker = start_worker(url=server.url, hooks="support.hooks:Barrier", lease_ms=LEASE_MS, max_batch_size=8)
        # Given requests that wait, that are leased and on the device
        worker.hold("call")
        jobs = [client.submit("embed_text", {"text": f"number {n}"}, timeout=60) for n in range(100)]
        for job in jobs:
            job.accepted(20)
        worker.reached("call")
        wait_until(lambda: redis_client.xpending(keys.lanes[0], GROUP)["pending"] == 16, 10, "two batches held")
        # When Redis is killed and comes back
        server.restart()
        # then all 100 are there, 16 of them still leased
        assert redis_client.xlen(keys.lanes[0]) == 100
        assert redis_client.xpending(keys.lanes[0], GROUP)["pending"] == 16
        worker.release("call")
        # Then all are answered
        assert [outcome(job) for job in jobs] == ["ok"] * 100
        at_rest(redis_client, keys, [worker])


@pytest.mark.parametrize("dies", ["process", "machine"])
def test_a_restart_with_aof_everysec_loses_at_most_two_seconds_of_accepted_requests(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, start_worker: Callable[..., WorkerProcess], dies: str
) -> None:
    """A dead machine is acted out by cutting from the file what it held less than two seconds ago."""
    server = make_redis(appendonly="yes", appendfsync="everysec")
    accepted: list[tuple[float, Job]] = []
    sizes: list[tuple[float, int]] = []
    with server.client() as redis_client, Client(server.url, queue=keys.queue, wait_for_worker=True) as client:
        (file,) = list(server.directory.rglob("*.incr.aof")) or list(server.directory.rglob("*.aof"))
        # Given three seconds of a steady load that nobody works on yet
        began = time.monotonic()
        pace = threading.Event()
        while time.monotonic() < began + 3:
            pace.wait(0.01)
            job = client.submit("echo", {"data": len(accepted)}, timeout=12).accepted(10)
            accepted.append((time.monotonic(), job))
            sizes.append((time.monotonic(), file.stat().st_size))
        # When Redis dies
        server.kill()
        died = time.monotonic()
        if dies == "machine":
            with file.open("r+b") as stream:
                stream.truncate(max(size for at, size in sizes if at <= died - 2))
        server.start()
        kept = redis_client.xlen(keys.lanes[0])
        # Then what is lost is the latest, none of it older than two seconds
        lost = accepted[kept:]
        assert all(at >= died - 2 for at, _ in lost)
        assert lost or dies == "process"
        # and whoever asked for it is told by the deadline, all others are answered
        start_worker(url=server.url, model="none", lease_ms=LEASE_MS)
        assert {outcome(job) for _, job in accepted[:kept]} == {"ok"}
        assert {outcome(job) for _, job in lost} <= {"expired"}
        wait_until(lambda: redis_client.xlen(keys.lanes[0]) == 0, 10, "an empty lane")


def test_a_restart_without_persistence_gives_each_call_a_clear_error_by_its_deadline(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    server = make_redis()
    with server.client() as redis_client, Client(server.url, queue=keys.queue, timeout=30) as client:
        worker = start_worker(url=server.url, hooks="support.hooks:Barrier", lease_ms=LEASE_MS, max_batch_size=8)
        worker.hold("call")
        # Given 40 requests, 16 of them in a worker's hands
        jobs = [client.submit("embed_text", {"text": str(n)}, timeout=6) for n in range(40)]
        for job in jobs:
            job.accepted(20)
        worker.reached("call")
        before, since = log_lines(worker), time.monotonic()
        # When everything is gone for good
        server.restart()
        assert redis_client.dbsize() == 0 or redis_client.xlen(keys.lanes[0]) == 0
        worker.release("call")
        # Then each call ends by its deadline: no one hangs, no one is told anything but what happened
        with ThreadPoolExecutor(40) as pool:
            outcomes = set(pool.map(outcome, jobs))
        assert time.monotonic() - since < 6 + 2
        assert outcomes <= {"ok", "expired"}
        # and what comes next is served
        assert client.embed_text("next").ok
        assert log_lines(worker) - before <= 12 + (time.monotonic() - since)
        at_rest(redis_client, keys, [worker])


@pytest.mark.parametrize("durability", [None, "replica"])
def test_failover_to_a_replica(
    make_redis: Callable[..., RedisServer],
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    make_proxy: Callable[[int], Proxy],
    durability: str | None,
) -> None:
    """The address stays (a proxy, as a virtual IP or a Sentinel-aware one does), the server behind it changes."""
    primary = make_redis()
    replica = make_redis(replicaof=["127.0.0.1", str(primary.port)])
    address = make_proxy(primary.port)
    with primary.client() as old, replica.client() as new:
        wait_until(lambda: new.info("replication")["master_link_status"] == "up", 20, "the replica")
        client = Client(
            address.url, queue=keys.queue, durability=durability, wait_for_worker=True, timeout=15, io_timeout=2
        )
        with client:
            safe = asked(client, 20, 60)
            wait_until(lambda: new.xlen(keys.lanes[0]) == 20, 10, "the replica to have them")
            # Given a replica that falls behind while more is asked for
            replica.pause()
            jobs = [client.submit("echo", {"data": n}, timeout=15) for n in range(20, 40)]
            wait_until(lambda: old.xlen(keys.lanes[0]) == 40, 10, "all in the primary")
            # without the replica's word they are accepted; with durability="replica" they are not
            if durability is None:
                for job in jobs:
                    job.accepted(10)
            else:
                with pytest.raises(TimeoutError):
                    jobs[0].accepted(1.0)
            # When the primary dies and the replica takes over, behind the same address
            primary.kill()
            point(address, replica.port)
            replica.resume()
            new.replicaof("NO", "ONE")
            kept = new.xlen(keys.lanes[0])
            worker = start_worker(url=address.url, model="none", lease_ms=LEASE_MS)
            # Then what the replica had is answered
            assert [outcome(job) for job in safe] == ["ok"] * 20
            after = [outcome(job) for job in jobs]
            if durability is None:
                # what it had not received is lost, and said so at the deadline
                assert after.count("ok") == kept - 20
                assert set(after) <= {"ok", "expired"}
            else:
                # what was never confirmed went out again: nothing is lost
                assert after == ["ok"] * 20
            at_rest(new, keys, [worker])


def test_workers_and_clients_move_over_to_a_promoted_replica(
    make_redis: Callable[..., RedisServer],
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    make_proxy: Callable[[int], Proxy],
) -> None:
    primary = make_redis()
    replica = make_redis(replicaof=["127.0.0.1", str(primary.port)])
    address = make_proxy(primary.port)
    with replica.client() as new:
        wait_until(lambda: new.info("replication")["master_link_status"] == "up", 20, "the replica")
        worker = start_worker(url=address.url, model="none", lease_ms=LEASE_MS)
        with Client(address.url, queue=keys.queue, timeout=30, io_timeout=2) as client:
            assert client.run("echo", {"data": 1}).ok
            before, since = log_lines(worker), time.monotonic()
            # Given both blocked on the primary. When it is demoted (READONLY) and the other promoted
            with primary.client() as old:
                wait_until(lambda: reads_blocked(old), 10, "a blocked worker")
                new.replicaof("NO", "ONE")
                old.replicaof("127.0.0.1", replica.port)
                job = client.submit("echo", {"data": 2})
                point(address, replica.port)
            # Then everything goes on by itself
            assert job.result().outputs == {"data": 2}
            assert client.run("echo", {"data": 3}).ok
            assert log_lines(worker) - before <= 12 + (time.monotonic() - since)
        at_rest(new, keys, [worker])
