"""What a worker does with requests that it has no time for, or hears of too late."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError  # noqa: A004

from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.limits import GROUP
from clipfleet.schemas.result import decode_result
from clipfleet.worker.config import WorkerConfig
from clipfleet.worker.fleet import Fleet
from clipfleet.worker.wire import Wire
from support.fleet import admit
from support.worker_steps import LEASE_MS, Steps, echoes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

    from clipfleet.pipeline.work import Work
    from clipfleet.schemas.keys import QueueKeys
    from clipfleet.worker.stream import Delivery
    from support.fixtures import Leftovers
    from support.redis_server import RedisServer


@pytest.mark.parametrize(
    ("others_idle", "ttl_ms", "count", "returned"),
    [(True, 60_000, 1, True), (False, 60_000, 1, False), (True, 1_500, 1, False), (True, 60_000, 5, False)],
    ids=["others idle", "nobody idle", "no time for another", "more than there is room for"],
)
def test_given_no_time_here_then_another_worker_that_is_idle_has_it_and_else_it_is_told_so_at_once(
    redis_client: redis.Redis,
    keys: QueueKeys,
    stepping: Callable[[int], Steps],
    leftovers: Leftovers,
    others_idle: bool,
    ttl_ms: int,
    count: int,
    returned: bool,
) -> None:
    if returned or count > 4:
        leftovers.expected("what is handed back, or not read, is not run")
    steps = stepping(2)
    steps.intake._engine.forecast.hopeless = lambda works, **_: list(works)  # type: ignore[method-assign]
    if others_idle:
        steps.context.others_idle.set()
    requests = echoes(count, "late")
    admit(redis_client, keys, requests, ttl_ms=ttl_ms)
    steps.step()
    steps.settle(count)
    assert steps.ledger.active == 0
    pending = redis_client.xpending_range(keys.lanes[0], GROUP, "-", "+", 10)
    if returned:
        assert [(one["consumer"], one["times_delivered"]) for one in pending] == [(b"handback", 0)]
        # It rests no time: whoever looks next has it
        (taken,) = (
            steps.connect("other")
            .reclaim(keys.lanes[0], lease_ms=LEASE_MS, room=1, max_deliveries=3, solo=False)
            .deliveries
        )
        assert taken.deliveries == 1
    else:
        assert pending == []
        (raw,) = redis_client.lrange(keys.result(requests[0].id), 0, -1)
        error = decode_result(raw).error
        assert error is not None
        assert error.code is ErrorCode.EXPIRED


def test_given_a_pause_while_cancels_are_asked_for_then_the_deadline_is_no_sooner_for_it(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[[int], Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = stepping(2)
    steps.step()
    real, paused = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + paused[0])

    def cancelled(ids: Sequence[str]) -> list[bool]:
        paused[0] += 3.0  # of the process, or of Redis
        return [False] * len(ids)

    left: list[float] = []

    def hopeless(works: list[Work], **_: bool) -> list[Work]:
        left.extend(work.deadline - time.monotonic() for work in works)
        return []

    steps.intake._stream.cancelled = cancelled  # type: ignore[method-assign]
    steps.intake._engine.forecast.hopeless = hopeless  # type: ignore[assignment, method-assign]
    admit(redis_client, keys, echoes(1, "one"), ttl_ms=10_000)
    while not left:
        steps.step()
    steps.settle(1)
    assert left[0] >= 6.5  # of ten seconds, less three


def test_given_a_connection_lost_while_handing_back_then_the_request_rests_no_lease_and_counts_no_delivery(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[[int], Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("what is handed back is not run")
    steps = stepping(2)
    steps.context.others_idle.set()
    steps.intake._engine.forecast.hopeless = lambda works, **_: list(works)  # type: ignore[method-assign]
    steps.step()
    steps.intake._doubt_until = 0.0  # it was connected long ago
    real = steps.intake._stream.hand_back

    def lost(lane: str, entries: Sequence[tuple[str, int]], *, idle_ms: int) -> int:
        if not entries:
            return 0
        steps.intake._stream.hand_back = real  # type: ignore[method-assign]
        raise ConnectionError("lost")

    steps.intake._stream.hand_back = lost  # type: ignore[assignment, method-assign]
    admit(redis_client, keys, echoes(1, "late"))
    steps.step()
    assert len(steps.read) == 1
    # When it goes on, then it finds in its hands what it had not given back, and whoever looks next has it
    steps.step()
    assert [entry.deliveries for entry in steps.read] == [1, 1]


def test_given_a_worker_paused_while_it_waits_for_requests_then_what_another_has_taken_over_is_not_run(
    redis_client: redis.Redis,
    keys: QueueKeys,
    stepping: Callable[[int], Steps],
    leftovers: Leftovers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leftovers.expected("what another has taken over is not run here")
    steps = stepping(2)
    steps.step()
    real, paused, wait = time.monotonic, [0.0], steps.intake._stream.wait
    monkeypatch.setattr(time, "monotonic", lambda: real() + paused[0])

    def slow(*args: Any, **options: Any) -> list[Delivery]:
        """Its answers are there, and read a minute later."""
        found = wait(*args, **options)
        for one in found[:1]:
            redis_client.execute_command("XCLAIM", one.lane, GROUP, "other", 0, one.stream_id)
        paused[0] += 60.0
        return found

    steps.intake._stream.wait = slow  # type: ignore[method-assign]
    steps.intake._stream.read = lambda _: []  # type: ignore[method-assign]  (the first comes while it waits)
    admit(redis_client, keys, echoes(2, "one"), ttl_ms=600_000)
    steps.step()
    (held,) = steps.read
    (taken,) = (
        one for one in redis_client.xpending_range(keys.lanes[0], GROUP, "-", "+", 9) if one["consumer"] != b"me"
    )
    assert held.stream_id != taken["message_id"].decode()
    steps.settle(1)


def test_given_living_workers_then_the_supervisor_tells_its_own_whether_another_is_idle(
    redis_client: redis.Redis, keys: QueueKeys, redis_server: RedisServer
) -> None:
    said: list[bool] = []

    class Told:
        name, facts, stats = "ours", {}, {"settled": 0, "held": 0, "at": 1.0, "busy_s": 0, "full_s": 0, "loads": []}
        hear_of_idle = said.append

    fleet = Fleet(WorkerConfig(redis_url=redis_server.url, queue=keys.queue, prefix=keys.prefix))
    redis_client.hset(keys.fleet, "v", 1)
    wire = Wire(redis_server.url)
    for held in ("3", "0", "nonsense"):
        wire.call("heartbeat", [keys.workers, keys.worker("other")], ["other", 5_000, "held", held, "rate", "2.5"])
        fleet.heartbeat([Told()])  # type: ignore[list-item]
    assert said == [False, True, False]
    assert redis_client.hget(keys.fleet, "rate") == b"2.5"
    fleet.close()
    wire.close()
