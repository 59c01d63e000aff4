"""What a supervisor does about its dead, over a real Redis that hears of them late."""

from __future__ import annotations

import selectors
import socket
import time
from typing import TYPE_CHECKING

import pytest

from chaos.checks import consumers
from clipfleet.schemas.limits import GROUP, HANDBACK_CONSUMER
from clipfleet.worker.config import NO_MODEL, WorkerConfig
from clipfleet.worker.fleet import ECHO_S, Fleet, FleetRefused
from clipfleet.worker.supervisor import Supervisor
from support.fleet import admit
from support.worker_steps import echoes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fixtures import Leftovers
    from support.redis_server import RedisServer


@pytest.fixture
def fleet(redis_client: redis.Redis, redis_server: RedisServer, keys: QueueKeys) -> Iterator[Fleet]:
    for lane in keys.lanes:
        redis_client.xgroup_create(lane, GROUP, "0", mkstream=True)
    fleet = Fleet(WorkerConfig(redis_url=redis_server.url, queue=keys.queue, prefix=keys.prefix, model=NO_MODEL))
    yield fleet
    fleet.close()


@pytest.fixture
def read_as_the_dead(redis_client: redis.Redis, keys: QueueKeys, leftovers: Leftovers) -> Callable[[str], None]:
    """Its last read, of two requests in each lane, of which nobody hears."""
    leftovers.expected("no worker runs them")

    def read(start: str) -> None:
        for lane in keys.lanes:
            which = lane.rpartition(":")[2]
            admit(redis_client, keys, echoes(2, start + which), lane=which, ttl_ms=600_000)
            redis_client.xreadgroup(GROUP, "dead", {lane: ">"})

    return read


def pending(client: redis.Redis, keys: QueueKeys) -> list[tuple[str, int]]:
    """Consumer and deliveries of each."""
    rows = [row for lane in keys.lanes for row in client.xpending_range(lane, GROUP, "-", "+", 99)]
    return [(row["consumer"].decode(), row["times_delivered"]) for row in rows]


def test_given_a_read_that_nobody_reported_when_its_process_is_dead_then_it_is_given_back_and_the_name_gone(
    fleet: Fleet, redis_client: redis.Redis, keys: QueueKeys, read_as_the_dead: Callable[[str], None]
) -> None:
    read_as_the_dead("a")
    fleet.release("dead")
    assert consumers(redis_client, keys) == set()
    # and the counts stay, since one of them may have killed it
    assert pending(redis_client, keys) == [(HANDBACK_CONSUMER, 1)] * 4


def test_given_a_read_that_redis_hears_of_after_the_release_then_the_next_heartbeats_give_it_back(
    fleet: Fleet,
    redis_client: redis.Redis,
    keys: QueueKeys,
    read_as_the_dead: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet.release("dead")
    for start in "ab":
        read_as_the_dead(start)
        assert consumers(redis_client, keys) == {"dead"}
        fleet.heartbeat([])
        assert consumers(redis_client, keys) == set()
    assert pending(redis_client, keys) == [(HANDBACK_CONSUMER, 1)] * 8
    # and the last look is after the time in which it may be heard of
    read_as_the_dead("c")
    later = fleet._dead["dead"] + ECHO_S
    monkeypatch.setattr("clipfleet.worker.fleet.time.monotonic", lambda: later)
    fleet.heartbeat([])
    assert consumers(redis_client, keys) == set()
    assert not fleet._dead


def test_given_lanes_that_are_gone_or_something_else_when_a_process_died_then_its_presence_goes_all_the_same(
    fleet: Fleet, redis_client: redis.Redis, keys: QueueKeys
) -> None:
    redis_client.delete(keys.lanes[0])
    redis_client.delete(keys.lanes[1])
    redis_client.set(keys.lanes[1], "somebody's")
    redis_client.zadd(keys.workers, {"dead": 1})
    fleet.release("dead")
    assert redis_client.zcard(keys.workers) == 0
    redis_client.delete(keys.lanes[1])


def test_given_a_read_that_redis_hears_of_after_the_release_when_the_supervisor_stops_then_it_gives_it_back(
    redis_client: redis.Redis, keys: QueueKeys, fleet: Fleet, read_as_the_dead: Callable[[str], None]
) -> None:
    supervisor = Supervisor(fleet._config, [])
    supervisor._fleet.release("dead")
    read_as_the_dead("a")
    supervisor._stop()
    assert consumers(redis_client, keys) == set()
    assert pending(redis_client, keys) == [(HANDBACK_CONSUMER, 1)] * 4


def test_given_a_redis_that_is_away_when_the_supervisor_stops_then_it_stops(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis()
    supervisor = Supervisor(WorkerConfig(redis_url=server.url, queue=keys.queue, model=NO_MODEL), [])
    supervisor._fleet.release("dead")
    server.kill()
    supervisor._stop()
    assert "may stay in the queue's group for a minute" in caplog.text


class Died:
    """A worker process that was killed, before it was ready or after."""

    name, failure, exit_code = "dead", "", -9

    def __init__(self, supervisor: Supervisor, *, ready: bool) -> None:
        self.facts = {"model": "none"} if ready else {}
        self.started_at = time.monotonic()
        self.channel = socket.socket()
        self.close = self.channel.close
        supervisor._selector.register(self.channel, selectors.EVENT_READ, self)
        supervisor._children[0] = self  # type: ignore[assignment]


def test_given_processes_that_were_killed_when_ready_then_two_more_at_their_start_are_no_reason_to_give_up(
    redis_server: RedisServer, keys: QueueKeys
) -> None:
    supervisor = Supervisor(WorkerConfig(redis_url=redis_server.url, queue=keys.queue, model=NO_MODEL), ["cpu"])
    for ready in (True, True, True, False, False, True, False, False):
        Died(supervisor, ready=ready)
        supervisor._reap()
    # but a third in a row is
    Died(supervisor, ready=False)
    with pytest.raises(FleetRefused, match="3 times before it was ready"):
        supervisor._reap()
    supervisor._stop()
