"""Point 12: a thousand life cycles in process, twenty real restarts: nothing is left over, of any kind."""

from __future__ import annotations

import gc
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from chaos.checks import LEASE_MS, all_let_go, answers, at_rest, consumers, echoes
from clipfleet.producer import Client
from clipfleet.worker import WorkerConfig
from clipfleet.worker.assembly import assemble
from clipfleet.worker.control import Channel
from clipfleet.worker.fleet import Fleet
from clipfleet.worker.process import Process
from support.fleet import WorkerProcess, admit
from support.raw_worker import RawWorker
from support.waiting import wait_until

if TYPE_CHECKING:
    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer

pytestmark = pytest.mark.chaos
RESTARTS = int(os.environ.get("CLIPFLEET_CHAOS_RESTARTS", "20"))


def owned() -> tuple[int, int]:
    """Threads and file descriptors of this process."""
    gc.collect()
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def test_a_thousand_clients_leave_no_thread_descriptor_or_key(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys
) -> None:
    with RawWorker(redis_server.url, keys):
        wait_until(lambda: redis_client.zcard(keys.workers), 10, "a worker")
        before = (0, 0)
        for number in range(1_000):
            with Client(redis_server.url, queue=keys.queue, timeout=20) as client:
                assert client.run("echo", {"data": number}).outputs == {"data": number}
            if number == 10:  # whatever is made once is made by now
                before = owned()
        assert owned() <= before
    wait_until(lambda: len(redis_client.client_list()) <= 2, 10, "no connection left")


def live_once(config: WorkerConfig, number: int, redis_client: redis.Redis) -> None:
    """One worker's life in this process: start, one request, stop; what the supervisor does is done here."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    process = Process(config, f"life{number}", Channel(theirs), assemble(config, "cpu"))
    living = threading.Thread(target=process.run)
    living.start()
    channel.send("go")
    (request,) = echoes(1, f"life{number}x")
    admit(redis_client, config.keys, [request])
    answers(redis_client, config.keys, [request], 20)
    channel.send("stop")
    living.join(20)
    assert not living.is_alive()
    channel.close()
    process._channel.close()
    for lane in config.keys.lanes:
        assert redis_client.xgroup_delconsumer(lane, "workers", f"life{number}") == 0


@pytest.mark.timeout(300)
def test_a_thousand_lives_of_a_worker_in_one_process_leave_no_thread_or_descriptor(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that waits for work looks up each second; a thousand of them need not be waited for.
    monkeypatch.setattr("clipfleet.worker.intake.BLOCK_MS", 5)
    config = WorkerConfig(redis_url=redis_server.url, queue=keys.queue, model="none", decode_threads=1)
    before = (0, 0)
    for number in range(1_000):
        live_once(config, number, redis_client)
        if number == 10:
            before = owned()
    threads, descriptors = owned()
    assert threads <= before[0]
    assert descriptors <= before[1]
    at_rest(redis_client, keys)


@pytest.mark.timeout(60 + 10 * RESTARTS)
def test_restarts_leave_no_consumer_key_process_or_connection(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys
) -> None:
    """Half of them by SIGTERM, half by SIGKILL of the worker process; 1,000 with ``make chaos``."""
    connections = len(redis_client.client_list())  # some of the last test's may still be on their way out
    for number in range(RESTARTS):
        worker = WorkerProcess(redis_server.url, keys, model="none", lease_ms=LEASE_MS)
        with worker:
            asked = echoes(20, f"life{number}x")
            admit(redis_client, keys, asked)
            if number % 2:
                worker.child().kill()
            assert all(result.ok for result in answers(redis_client, keys, asked).values())
            family = worker.group()
        assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        at_rest(redis_client, keys)
    wait_until(lambda: len(redis_client.client_list()) <= connections, 10, "no connection left")
    # what stays are the lanes, the fleet and the names of workers that stopped beating at most a day ago
    left = {key.decode().rsplit(":", 1)[-1] for key in redis_client.scan_iter() if redis_client.pttl(key) == -1}
    assert left <= {"interactive", "bulk", "fleet", "workers"}
    assert redis_client.zcard(keys.workers) == 0


def test_a_supervisor_that_outlives_many_children_keeps_nothing_of_them(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys
) -> None:
    with WorkerProcess(redis_server.url, keys, model="none", lease_ms=LEASE_MS) as worker:
        supervisor = psutil.Process(worker.process.pid)

        def after_a_death() -> tuple[int, int]:
            gone = worker.child()
            gone.kill()
            wait_until(lambda: worker.children and worker.child().pid != gone.pid and worker.names, 30, "a successor")
            worker.await_ready()
            return supervisor.num_fds(), supervisor.num_threads()

        first = after_a_death()
        for _ in range(4):
            last = after_a_death()
        assert last == first
        at_rest(redis_client, keys, [worker])


def test_a_name_whose_machine_died_is_struck_off_by_another(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a worker that was killed with its supervisor, so that nobody said goodbye for it
    gone = WorkerProcess(redis_server.url, keys, model="none", lease_ms=LEASE_MS).start()
    (name,) = gone.names
    admit(redis_client, keys, echoes(3))
    answers(redis_client, keys, echoes(3))
    all_let_go(gone)
    gone.kill_all()
    fleet = Fleet(WorkerConfig(redis_url=redis_server.url, queue=keys.queue, model="none"))
    # When others look around: while its presence is there it stays
    monkeypatch.setattr("clipfleet.worker.fleet.FORGOTTEN_MS", 0)
    fleet._tidy({"me"})
    assert consumers(redis_client, keys) == {name}
    # and when that is over it goes, unless it still holds something
    redis_client.delete(keys.worker(name))
    redis_client.xgroup_createconsumer(keys.lanes[0], "workers", "holds")
    admit(redis_client, keys, echoes(1, "held"))
    redis_client.xreadgroup("workers", "holds", {keys.lanes[0]: ">"}, count=1)
    fleet._tidy({"me"})
    fleet.close()
    assert consumers(redis_client, keys) == {"holds"}
    # whose work is done first
    with WorkerProcess(redis_server.url, keys, model="none", lease_ms=LEASE_MS):
        assert all(result.ok for result in answers(redis_client, keys, echoes(1, "held")).values())
    gone.close()
