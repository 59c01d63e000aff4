"""Points 2 and 3: leases taken over, kept and lost; owners that come back late; calls longer than the lease."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from chaos.checks import LEASE_MS, all_let_go, answers, at_rest, held, owners, pending, texts
from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.request import Request
from clipfleet.schemas.result import decode_result
from support.fleet import admit
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess

pytestmark = pytest.mark.chaos
BARRIER = "support.hooks:Barrier"


@pytest.mark.parametrize("stopped", ["alone", "group"])
@pytest.mark.parametrize("failing", [False, True], ids=["success", "failure"])
def test_a_stale_owner_comes_back_while_the_new_one_works(
    redis_client: redis.Redis,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    stopped: str,
    failing: bool,
) -> None:
    # Given a worker in its model call
    first = start_worker(hooks=BARRIER, lease_ms=LEASE_MS)
    first.hold("call")
    (request,) = texts(1, "contested")
    admit(redis_client, keys, [request])
    first.reached("call")
    (old,) = owners(redis_client, keys)
    wait_until(lambda: held(first) == 1, 10, "it says that it holds one")
    # When it is stopped, alone or with its supervisor
    victims = [first.child()] if stopped == "alone" else first.group()
    for victim in victims:
        victim.suspend()
    # then another takes the request over when the lease has ended, and stands in its own call
    second = start_worker(hooks=BARRIER, lease_ms=LEASE_MS)
    second.hold("call")
    second.reached("call")
    wait_until(lambda: held(second) == 1, 10, "it says that it holds one")
    ((new, deliveries),) = pending(redis_client, keys).values()
    assert (new, deliveries) == (second.names[0], 2)
    assert new != old
    # The first one goes on; its supervisor renews what it thinks is held, and steals nothing
    for victim in reversed(victims):
        victim.resume()
    since = time.monotonic()

    def a_lease() -> bool:
        assert set(pending(redis_client, keys).values()) == {(new, 2)}
        return time.monotonic() - since > LEASE_MS / 1000

    wait_until(a_lease, 10, "a lease")
    # It comes out of its call, with a result or with a failure of its own
    if failing:
        (first.barrier / "fail-call").touch()
    first.release("call")
    wait_until(lambda: [one.get("settled") for one in first.presence()] == ["1"], 30, "its late settling")
    # Its failure does not count and its success does; in neither case is the new owner's lease stolen
    result_key = keys.result(request.id)
    if failing:
        assert redis_client.llen(result_key) == 0
        assert set(pending(redis_client, keys).values()) == {(new, 2)}
    else:
        assert redis_client.llen(result_key) == 1
        assert decode_result(redis_client.lindex(result_key, 0)).ok
        assert pending(redis_client, keys) == {}
    before = redis_client.lrange(result_key, 0, -1)
    second.release("call")
    # What it holds it may have let go of at the last renewal: its own settling is what must change nothing
    wait_until(lambda: [one.get("settled") for one in second.presence()] == ["1"], 30, "the new owner's settling")
    all_let_go(second)
    # and there is one result, a success, whoever was first
    found = answers(redis_client, keys, [request])
    assert found[request.id].ok
    assert failing or redis_client.lrange(result_key, 0, -1) == before
    at_rest(redis_client, keys, [first, second])


@pytest.mark.parametrize("kind", ["gil", "c"])
def test_a_call_of_three_leases_is_not_reclaimed_while_its_worker_lives(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], kind: str
) -> None:
    # Given a worker in a call that is blocked in C, with the GIL or without, and an idle one that comes then
    busy = start_worker(hooks="support.hooks:LongCall", lease_ms=1_500)
    (busy_name,) = busy.names
    fifo = busy.barrier / kind
    os.mkfifo(fifo)
    requests = texts(8, kind)
    admit(redis_client, keys, requests)
    busy.reached("call")
    assert owners(redis_client, keys) == {busy_name}
    idle = start_worker(lease_ms=1_500)
    since = time.monotonic()

    # Then for three leases and more they are the busy one's, delivered once
    def three_leases() -> bool:
        assert set(pending(redis_client, keys).values()) == {(busy_name, 1)}
        return time.monotonic() - since > 5

    wait_until(three_leases, 20, "three leases")
    # and when the call returns it answers them itself
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # an error if nobody stands in the call any more
    assert all(result.ok for result in answers(redis_client, keys, requests).values())
    os.close(writer)
    wait_until(lambda: [one.get("settled") for one in busy.presence()] == ["8"], 20, "its own answers")
    at_rest(redis_client, keys, [busy, idle])


def test_what_a_hung_call_held_is_run_alone_afterwards(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a call that does not return
    worker = start_worker(hooks=BARRIER, lease_ms=LEASE_MS, max_run_s=1.5, max_delay_ms=100)
    worker.hold("call")
    requests = texts(3, "hang")
    admit(redis_client, keys, requests)
    worker.reached("call")
    hung, (old,) = worker.child().pid, owners(redis_client, keys)
    began = (worker.barrier / f"call.{hung}").stat().st_mtime
    assert set(pending(redis_client, keys).values()) == {(old, 1)}
    # When it is older than max_run_s its process is killed, and not before
    wait_until(lambda: not psutil.pid_exists(hung), 20, "the hung process killed")
    assert time.time() - began >= 1
    # Then its successor gets them one at a time, each delivered for the second time
    worker.reached("call", count=2)
    assert sorted(count for _, count in pending(redis_client, keys).values()) == [1, 1, 2]
    assert {consumer for consumer, count in pending(redis_client, keys).values() if count == 1} == {"handback"}
    worker.release("call")
    found = answers(redis_client, keys, requests)
    assert all(result.notes["batch_size"] == 1 for result in found.values())
    at_rest(redis_client, keys, [worker])


def test_after_a_pause_a_worker_asks_what_it_still_owns_before_it_runs_anything(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker stopped before its device, long enough for another to have done the work
    first = start_worker(hooks=BARRIER, lease_ms=LEASE_MS)
    first.hold("prepare")
    requests = texts(4, "paused")
    admit(redis_client, keys, requests)
    first.reached("prepare")
    wait_until(lambda: held(first) == 4, 10, "it says that it holds four")
    first.child().suspend()
    second = start_worker(lease_ms=LEASE_MS)
    answers(redis_client, keys, requests)
    # When it goes on
    first.release("prepare")
    first.child().resume()
    all_let_go(first)
    # Then it runs none of them: there was nothing that it could have settled
    assert [int(one["settled"]) for one in first.presence()] == [0]
    at_rest(redis_client, keys, [first, second])


def test_a_verdict_on_the_item_counts_from_a_stale_owner_too(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker stopped before it answers that a picture is none, and another that has taken it over
    first = start_worker(hooks=BARRIER, lease_ms=LEASE_MS)
    first.hold("settle")
    request = Request("none0", "embed_image", {"image": b"no picture"})
    admit(redis_client, keys, [request])
    first.reached("settle")
    first.child().suspend()
    second = start_worker(hooks=BARRIER, lease_ms=LEASE_MS)
    second.hold("prepare")
    second.reached("prepare")
    wait_until(lambda: held(second) == 1, 10, "it says that it holds one")
    assert set(pending(redis_client, keys).values()) == {(second.names[0], 2)}
    # When the stale one goes on, Then its verdict ends the request
    first.release("settle")
    first.child().resume()
    found = answers(redis_client, keys, [request])
    assert found["none0"].error.code is ErrorCode.UNSUPPORTED_MEDIA
    second.release("prepare")
    all_let_go(second)
    answers(redis_client, keys, [request])
    at_rest(redis_client, keys, [first, second])


def test_a_worker_whose_supervisor_dies_goes_too_even_while_its_call_holds_the_gil(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker that cannot run a line of Python: it would not notice by itself
    worker = start_worker(hooks="support.hooks:LongCall", lease_ms=LEASE_MS)
    os.mkfifo(worker.barrier / "gil")
    requests = texts(2, "orphan")
    admit(redis_client, keys, requests)
    worker.reached("call")
    orphan = worker.child()
    # When its supervisor is killed, Then it is gone at once, and its work is done elsewhere
    worker.process.kill()
    worker.process.wait()
    psutil.wait_procs([orphan], timeout=5)
    assert not orphan.is_running()
    other = start_worker(lease_ms=LEASE_MS)
    assert all(result.ok for result in answers(redis_client, keys, requests).values())
    at_rest(redis_client, keys, [other], dead=set(worker.names))
