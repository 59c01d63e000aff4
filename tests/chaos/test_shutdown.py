"""Point 11: SIGTERM under load, and a second one."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from chaos.checks import LEASE_MS, answers, at_rest, consumers, pending, texts
from clipfleet.producer import Client, requests
from support.fleet import admit
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

pytestmark = pytest.mark.chaos


def test_workers_replaced_one_after_another_under_load_lose_and_double_nothing(
    redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a steady load on two workers; leases are long, so that nothing comes back by waiting
    settings = {"lease_ms": 60_000, "max_batch_size": 16}
    living = [start_worker(**settings), start_worker(**settings)]
    stop = threading.Event()
    answered: list[int] = []
    sent = 0

    def endless():
        nonlocal sent
        while not stop.is_set():
            yield requests.embed_text(f"thing number {sent}", tag=sent)
            sent += 1

    def load() -> None:
        with Client(redis_server.url, queue=keys.queue, timeout=60) as client:
            for request, result in client.map_with_request(endless(), max_in_flight=128):
                assert result.ok, result.error
                assert result.timing["total"] < 20_000
                answered.append(request.tag)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        for _ in range(3):
            so_far = len(answered)
            wait_until(lambda so_far=so_far: len(answered) > so_far + 200, 60, "the load to flow")
            # When the oldest is told to stop and another takes its place
            old = living.pop(0)
            names = set(old.names)
            began = time.monotonic()
            old.process.send_signal(signal.SIGTERM)
            # Then it is gone within 10 s, with its name and with nothing in its hands
            assert old.process.wait(10) == 0
            assert time.monotonic() - began < 10
            assert not names & consumers(redis_client, keys)
            living.append(start_worker(**settings))
    finally:
        stop.set()
        loading.join(60)
    assert not loading.is_alive()
    # every request was answered once
    assert sorted(answered) == list(range(sent))
    at_rest(redis_client, keys, living)


def test_a_second_sigterm_ends_a_worker_at_once(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker in a call that does not end, told to stop with a minute's grace
    worker = start_worker(hooks="support.hooks:Barrier", lease_ms=60_000, grace_s=60)
    worker.hold("call")
    asked = texts(5)
    admit(redis_client, keys, asked)
    worker.reached("call")
    worker.process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    wait_until(lambda: time.monotonic() - told > 0.5, 5, "half a second")
    assert worker.process.poll() is None
    # When it is told again, Then it is gone, and what it held is free for others at once
    worker.process.send_signal(signal.SIGTERM)
    again = time.monotonic()
    worker.process.wait(5)
    assert time.monotonic() - again < 3
    assert set(pending(redis_client, keys).values()) == {("handback", 1)}
    other = start_worker(lease_ms=60_000)
    assert all(result.ok for result in answers(redis_client, keys, asked, 20).values())
    at_rest(redis_client, keys, [other])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_is_told_to_all_processes_at_once_finishes_what_is_on_the_device(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], number: signal.Signals
) -> None:
    """As systemd, timeout(1) and a terminal tell it."""
    # Given a worker in a call, with leases that nobody could wait for
    worker = start_worker(hooks="support.hooks:Barrier", lease_ms=60_000, grace_s=60)
    worker.hold("call")
    asked = texts(5)
    admit(redis_client, keys, asked)
    worker.reached("call")
    child = worker.child()
    # When each of its processes gets the signal, the one that works first
    for one in reversed(worker.group()):
        one.send_signal(number)
    told = time.monotonic()
    wait_until(lambda: time.monotonic() - told > 0.5, 5, "half a second")
    # Then the call goes on, is answered, and only then all end
    assert child.is_running()
    worker.release("call")
    assert worker.process.wait(10) == 0
    assert all(result.ok for result in answers(redis_client, keys, asked, 1).values())
    at_rest(redis_client, keys)


def test_a_call_longer_than_the_grace_period_is_cut_off_within_it(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker(hooks="support.hooks:Barrier", lease_ms=LEASE_MS, grace_s=2)
    worker.hold("call")
    asked = texts(5)
    admit(redis_client, keys, asked)
    worker.reached("call")
    began = time.monotonic()
    worker.terminate(10)
    assert 2 <= time.monotonic() - began < 8
    assert set(pending(redis_client, keys).values()) == {("handback", 1)}
    other = start_worker(lease_ms=LEASE_MS)
    assert all(result.ok for result in answers(redis_client, keys, asked, 20).values())
    at_rest(redis_client, keys, [other])
