"""Workers killed, stopped and hung at named points: every request gets exactly one result."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.request import Request
from clipfleet.schemas.result import decode_result
from clipfleet.worker.process import GIVE_WAY
from support.fleet import admit, results
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess

LEASE_MS = 1_500


def texts(count: int, start: str = "r") -> list[Request]:
    return [Request(f"{start}{i}", "embed_text", {"text": f"a picture of thing number {i}"}) for i in range(count)]


def answered_once(client: redis.Redis, keys: QueueKeys, ids: list[str], timeout: float = 30.0) -> None:
    found = results(client, keys, ids, timeout)
    assert {len(entries) for entries in found.values()} == {1}
    assert [decode_result(found[one][0]).id for one in ids] == ids


def test_a_worker_killed_in_its_model_call_loses_nothing(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker that stands in its model call with requests on the device and in decode; leases are long
    worker = start_worker(hooks="support.hooks:Barrier", lease_ms=60_000, max_batch_size=16)
    worker.hold("call")
    requests = texts(200)
    assert admit(redis_client, keys, requests)[0] == 200
    worker.reached("call")
    # When it is killed
    worker.unhold("call")
    worker.child().kill()
    # Then every request has exactly one result, without waiting for its lease to end
    answered_once(redis_client, keys, [one.id for one in requests])
    # and none of the innocent is called poisoned
    assert redis_client.xlen(keys.dead) == 0


def test_a_killed_supervisor_leaves_no_orphan_and_its_work_is_done_elsewhere(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    first = start_worker(hooks="support.hooks:Barrier", lease_ms=LEASE_MS)
    first.hold("call")
    requests = texts(100)
    admit(redis_client, keys, requests)
    first.reached("call")
    orphan = first.child()
    # When the supervisor alone is killed
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    # Then its worker process is gone too, though it never came out of its call
    psutil.wait_procs([orphan], timeout=10)
    assert not orphan.is_running()
    # and another worker does the work
    start_worker(lease_ms=LEASE_MS)
    answered_once(redis_client, keys, [one.id for one in requests])


@pytest.mark.chaos
def test_a_killer_costs_at_most_three_deaths_and_its_neighbours_nothing(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given two requests that abort the process in one batch with 62 others, and 64 more behind them
    worker = start_worker(hooks="support.hooks:Murderous", lease_ms=LEASE_MS, max_delay_ms=50)
    requests = [*texts(30, "a"), *texts(1, "killA"), *texts(31, "b"), *texts(1, "killB"), *texts(65, "c")]
    admit(redis_client, keys, requests)
    ids = [one.id for one in requests]
    found = {one: decode_result(raw[0]) for one, raw in results(redis_client, keys, ids, 60).items()}
    # Then all others have their vectors, and the two are poisoned
    poisoned = {one for one, result in found.items() if not result.ok}
    assert poisoned == {"killA0", "killB0"}
    assert {found[one].error.code for one in poisoned} == {ErrorCode.POISONED}
    # with at most three deaths each, and a dead letter for each
    assert len(list(worker.barrier.glob("death.*"))) <= 6
    letters = {fields[b"id"].decode() for _, fields in redis_client.xrange(keys.dead)}
    assert letters == poisoned
    redis_client.delete(keys.dead)


def test_one_raising_item_fails_alone(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(hooks="support.hooks:Murderous", max_delay_ms=50)
    requests = [*texts(20, "a"), *texts(1, "raise"), *texts(20, "b")]
    admit(redis_client, keys, requests)
    found = results(redis_client, keys, [one.id for one in requests])
    failed = {one: decode_result(raw[0]).error for one, raw in found.items() if not decode_result(raw[0]).ok}
    assert list(failed) == ["raise0"]
    # The caller learns an incident number and not what the model said
    assert failed["raise0"].code is ErrorCode.MODEL_FAILED
    assert "did not like" not in failed["raise0"].message


@pytest.mark.chaos
def test_out_of_memory_halves_the_batch(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a device that has room for 16 of these but not for 64, which are there before it: so they are one batch
    requests = texts(64, "oom")
    admit(redis_client, keys, requests)
    worker = start_worker(hooks="support.hooks:Murderous", max_delay_ms=50)
    answered_once(redis_client, keys, [one.id for one in requests])
    assert all(decode_result(redis_client.lindex(keys.result(one.id), 0)).ok for one in requests)
    # and it is remembered
    assert "16 from now on" in worker.log


def test_sigterm_hands_undone_work_back_at_once(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker whose device is busy with one batch, and more behind it; leases are long
    worker = start_worker(hooks="support.hooks:Barrier", lease_ms=60_000, max_batch_size=8)
    worker.hold("call")
    requests = texts(100, "term")
    admit(redis_client, keys, requests)
    worker.reached("call")
    # When it is told to stop
    worker.process.send_signal(signal.SIGTERM)
    worker.release("call")
    assert worker.process.wait(10) == 0
    # Then what it did not run is free for others now, with no death counted
    back = redis_client.xpending_range(keys.lanes[0], "workers", "-", "+", 200)
    assert len(back) <= 16
    assert {(one["consumer"], one["times_delivered"]) for one in back} <= {(b"handback", 0)}
    assert redis_client.xinfo_consumers(keys.lanes[0], "workers") == [] or {
        one["name"] for one in redis_client.xinfo_consumers(keys.lanes[0], "workers")
    } == {b"handback"}
    start_worker(lease_ms=60_000)
    answered_once(redis_client, keys, [one.id for one in requests])


def test_a_worker_that_differs_from_the_fleet_refuses_to_start(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(capacity=500)
    other = start_worker(ready=False, capacity=600)
    assert other.process.wait(30) == 1
    assert "capacity is '500' there and '600' here" in other.log


def test_given_a_cpu_then_what_computes_on_it_lets_go_first_what_reads_and_answers(
    start_worker: Callable[..., WorkerProcess],
) -> None:
    worker = start_worker(decode_threads=3)
    pid, ours = worker.child().pid, os.getpriority(os.PRIO_PROCESS, 0)

    def nice() -> Counter[int] | None:
        threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
        found = Counter(os.getpriority(os.PRIO_PROCESS, thread) - ours for thread in threads)
        return found if found[GIVE_WAY] else None  # they are started once it is told to go

    # Those that decode and those of the device; not those that read, settle, and decode what is asked live
    found = wait_until(nice, 20, "threads that let others go first")
    assert set(found) == {0, GIVE_WAY}
    assert os.getpriority(os.PRIO_PROCESS, pid) == ours
