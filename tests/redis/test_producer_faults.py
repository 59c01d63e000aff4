"""What a network and a Redis can do to a client: nothing is lost, nothing doubled, every call ends."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clipfleet.producer import Client, QueueFull, Unavailable, requests
from clipfleet.producer.connection import engine
from support.raw_worker import RawWorker
from support.redis_server import free_port
from support.waiting import quickest, wait_until


def present(client, keys):
    wait_until(lambda: client.zcard(keys.workers), 10, "a worker's presence")


@pytest.mark.parametrize(
    "direction", [{"requests": False}, {"replies": False}, {}], ids=["replies", "requests", "both"]
)
def test_a_stall_beyond_the_timeout_doubles_and_loses_nothing(redis_server, redis_client, make_proxy, keys, direction):
    """Given a proxy that stalls Redis beyond the client's timeout during 1,000 submits,
    when it lets everything go, the given-up connections' commands included,
    then there are exactly 1,000 entries and 1,000 results."""
    proxy = make_proxy(redis_server.port)
    with Client(proxy.url, queue=keys.queue, wait_for_worker=True, timeout=60, io_timeout=0.3) as client:
        jobs = [client.submit("echo", {"data": n}) for n in range(300)]
        proxy.stall(**direction)
        jobs += [client.submit("echo", {"data": n}) for n in range(300, 1000)]
        before = proxy.connections
        wait_until(lambda: proxy.connections >= before + 3, 10, "the client to give connections up")
        proxy.resume()
        for job in jobs:
            job.accepted(20)
        assert redis_client.xlen(keys.lanes[0]) == 1000
        with RawWorker(redis_server.url, keys) as worker:
            assert [job.result().outputs["data"] for job in jobs] == list(range(1000))
        assert len(worker.handled) == len(set(worker.handled)) == 1000


def test_connections_cut_within_a_reply_lose_no_result(redis_server, redis_client, make_proxy, keys):
    proxy = make_proxy(redis_server.port)
    with RawWorker(redis_server.url, keys) as worker:
        present(redis_client, keys)
        with Client(proxy.url, queue=keys.queue, timeout=30) as client:
            seen = 0
            for result in client.map((requests.echo(n) for n in range(6000)), max_in_flight=64):
                assert result.ok, result.error
                assert result.outputs["data"] == seen
                seen += 1
                if seen % 20 == 0:
                    proxy.cut_after(seen % 700)
    assert proxy.cuts >= 50
    assert seen == len(set(worker.handled)) == len(worker.handled) == 6000


def test_a_lost_reply_to_an_admission_adds_nothing_twice(redis_server, redis_client, make_proxy, keys):
    proxy = make_proxy(redis_server.port)
    with Client(proxy.url, queue=keys.queue, wait_for_worker=True, timeout=30) as client:
        client.submit("echo", {"data": 0}).accepted(5)
        proxy.cut_after(0)
        job = client.submit("echo", {"data": 1}).accepted(5)
        assert proxy.cuts == 1
        assert redis_client.xlen(keys.lanes[0]) == 2
        with RawWorker(redis_server.url, keys):
            assert job.result(5).outputs == {"data": 1}
            wait_until(lambda: redis_client.xlen(keys.lanes[0]) == 0, 5, "both to be settled")


def test_no_redis_is_unavailable_by_the_deadline(keys):
    with Client(f"redis://127.0.0.1:{free_port()}", queue=keys.queue, timeout=0.5) as client:

        def call():
            with pytest.raises(Unavailable, match="cannot be reached"):
                client.embed_text("x")

        assert quickest(call) < 1.5


def test_a_redis_that_accepts_and_says_nothing_is_unavailable_by_the_deadline(make_redis, keys):
    server = make_redis()
    server.pause()
    with Client(server.url, queue=keys.queue, timeout=1, io_timeout=0.3) as client, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.embed_text, "x") for _ in range(4)]
        for call in calls:
            with pytest.raises(Unavailable, match="did not answer"):
                call.result(5)


def test_a_restarted_redis_is_found_again_and_nothing_accepted_is_lost(make_redis, keys):
    server = make_redis(appendonly="yes", appendfsync="always")
    with Client(server.url, queue=keys.queue, wait_for_worker=True, timeout=30) as client:
        jobs = [client.submit("echo", {"data": n}) for n in range(100)]
        for job in jobs:
            job.accepted(5)
        server.restart()
        later = client.submit("echo", {"data": 100})
        with RawWorker(server.url, keys):
            assert [job.result().outputs["data"] for job in [*jobs, later]] == list(range(101))


def test_script_flush_and_flushall_are_survived(redis_server, redis_client, keys):
    with RawWorker(redis_server.url, keys), Client(redis_server.url, queue=keys.queue, wait_for_worker=True) as client:
        assert client.run("echo", {"data": 1}, timeout=10).ok
        redis_client.script_flush()
        assert client.run("echo", {"data": 2}, timeout=10).ok
        redis_client.flushall()
        assert client.run("echo", {"data": 3}, timeout=10).ok


def test_a_redis_at_maxmemory_refuses_requests_and_still_gives_results(make_redis, keys):
    server = make_redis()
    with server.client() as redis_client, RawWorker(server.url, keys) as worker:
        present(redis_client, keys)
        worker.hold.clear()
        with Client(server.url, queue=keys.queue, timeout=20) as client:
            jobs = [client.submit("echo", {"data": n}) for n in range(200)]
            for job in jobs:
                job.accepted(5)
            redis_client.config_set("maxmemory", 1)
            with pytest.raises(QueueFull) as caught:
                client.run("echo", {"data": 0})
            assert caught.value.retry_after > 0
            worker.hold.set()
            assert [job.result().outputs["data"] for job in jobs] == list(range(200))
            redis_client.config_set("maxmemory", 0)
            assert client.run("echo", {"data": 1}).ok


def test_a_demoted_primary_is_left_until_it_takes_writes_again(make_redis, keys):
    server = make_redis()
    with server.client() as redis_client, RawWorker(server.url, keys) as worker:
        present(redis_client, keys)
        worker.hold.clear()
        with Client(server.url, queue=keys.queue, timeout=30) as client:
            first = client.submit("echo", {"data": 1}).accepted(5)
            # A primary that does not exist: it keeps its data and answers READONLY.
            redis_client.config_set("replica-serve-stale-data", "yes")
            redis_client.replicaof("127.0.0.1", free_port())
            second = client.submit("echo", {"data": 2})
            with pytest.raises(TimeoutError):
                second.accepted(0.5)
            redis_client.replicaof("NO", "ONE")
            worker.hold.set()
            assert second.result().outputs == {"data": 2}
            assert first.result().outputs == {"data": 1}


def test_a_connection_silent_for_long_is_renewed_before_it_is_used(
    redis_server, redis_client, keys, make_proxy, monkeypatch, caplog
):
    monkeypatch.setattr(engine, "STALE_AFTER_S", 0.3)
    proxy = make_proxy(redis_server.port)
    with RawWorker(redis_server.url, keys):
        present(redis_client, keys)
        with Client(proxy.url, queue=keys.queue, timeout=20, io_timeout=1.0) as client:
            assert client.run("echo", {"data": 1}).ok
            used = time.monotonic()
            wait_until(lambda: time.monotonic() - used > 1.5, 5, "an idle time")
            proxy.stall()  # as a firewall does that forgot the connection: not even a refusal
            job = client.submit("echo", {"data": 2})
            proxy.resume()
            assert job.result().outputs == {"data": 2}
    assert proxy.connections >= 4
    assert "Redis is away" not in caplog.text, "we left it, and it is there"


def test_connections_that_the_server_closed_while_idle_are_made_again(redis_server, redis_client, keys):
    with RawWorker(redis_server.url, keys):
        present(redis_client, keys)
        with Client(redis_server.url, queue=keys.queue, timeout=20) as client:
            assert client.run("echo", {"data": 1}).ok
            for connection in redis_client.client_list():
                if connection["name"] == "clipfleet-producer":
                    redis_client.client_kill(connection["addr"])
            assert client.run("echo", {"data": 2}).ok


def test_a_wrong_password_is_said_at_once(make_redis, keys):
    server = make_redis(requirepass="secret")
    with Client(f"redis://:wrong@127.0.0.1:{server.port}", queue=keys.queue, timeout=20) as client:
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"WRONGPASS|invalid") as caught:
            client.embed_text("x")
        assert time.monotonic() - started < 2
        assert "wrong@" not in str(caught.value)


def test_an_acl_keeps_producers_to_their_own_inboxes(make_redis, keys):
    """The least a producer needs, as docs/protocol.md lists it."""
    server = make_redis()
    with server.client() as redis_client, RawWorker(server.url, keys):
        present(redis_client, keys)
        base = keys.base
        redis_client.execute_command(
            "ACL", "SETUSER", "alice", "on", ">pw", "resetkeys", "-@all",
            *(f"~{base}{key}" for key in ("interactive", "bulk", "fleet", "bytes", "workers", "call:alice.*",
                                          "inbox:alice.*", "cancel:*", "result:*")),
            "+eval", "+evalsha", "+xlen", "+xadd", "+hmget", "+get", "+set", "+incrby", "+time", "+zrevrange",
            "+blmove", "+lrange", "+ltrim", "+client|setname", "+select",
        )  # fmt: skip
        with Client(f"redis://alice:pw@127.0.0.1:{server.port}", queue=keys.queue, timeout=10) as client:
            assert client.run("echo", {"data": 1}).ok
            assert client._backend.inbox_key.startswith(keys.inbox("alice."))


def test_with_replica_durability_a_request_counts_when_a_replica_has_it(make_redis, keys):
    primary = make_redis()
    replica = make_redis(replicaof=["127.0.0.1", str(primary.port)])
    with primary.client() as redis_client, replica.client() as replica_client:
        wait_until(lambda: replica_client.info("replication")["master_link_status"] == "up", 20, "the replica")
        with Client(
            primary.url, queue=keys.queue, durability="replica", wait_for_worker=True, timeout=30, io_timeout=2
        ) as client:
            job = client.submit("echo", {"data": 1}).accepted(10)
            assert replica_client.xlen(keys.lanes[0]) == 1
            replica.pause()
            second = client.submit("echo", {"data": 2})
            with pytest.raises(TimeoutError):
                second.accepted(1.2)
            replica.resume()
            second.accepted(10)
            assert redis_client.xlen(keys.lanes[0]) == 2
            with RawWorker(primary.url, keys):
                assert [each.result(10).outputs["data"] for each in (job, second)] == [1, 2]


def test_a_cluster_node_that_does_not_hold_the_queue_shows_the_way(make_redis, keys):
    nodes = [make_redis(cluster_enabled="yes", cluster_node_timeout=2000) for _ in range(2)]
    holder, other = nodes
    with holder.client() as redis_client, other.client() as stranger:
        redis_client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        redis_client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
        for client in (redis_client, stranger):
            wait_until(lambda client=client: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), 20, "it")
        with (
            RawWorker(holder.url, keys),
            Client(other.url, queue=keys.queue, timeout=20, wait_for_worker=True) as producer,
        ):
            assert producer.run("echo", {"data": 1}).ok
