"""How a worker reads its lanes, against a real Redis: as much as there is room for, and a burst in one piece."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from clipfleet.schemas.keys import Lane
from clipfleet.schemas.request import Request
from clipfleet.worker.stream import MOST_TOGETHER, Delivery, QueueStream, Settlement
from clipfleet.worker.wire import Wire
from support.fleet import admit
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer


@pytest.fixture
def stream(redis_server: RedisServer, keys: QueueKeys) -> Iterator[QueueStream]:
    made = QueueStream(Wire(redis_server.url), keys, "me")
    made.ensure_groups()
    yield made
    made.wire.close()


def echoes(count: int, name: str) -> list[Request]:
    return [Request(f"{name}{number}", "echo", {"data": number}) for number in range(count)]


def blocked(client: redis.Redis) -> bool:
    return any(one["cmd"] == "xreadgroup" and "b" in one["flags"] for one in client.client_list())


def settle_all(stream: QueueStream, found: list[Delivery]) -> None:
    ends = [
        Settlement(one.lane, one.stream_id, len(one.fields[b"m"]), "", stream.keys.inbox("p.1"), b"r", 5_000)
        for one in found
    ]
    assert stream.settle(ends) == [1] * len(found)


@pytest.mark.parametrize("lane", [Lane.INTERACTIVE, Lane.BULK])
def test_given_a_blocked_reader_when_a_burst_comes_then_it_is_read_in_one_piece(
    redis_client: redis.Redis, stream: QueueStream, keys: QueueKeys, lane: Lane
) -> None:
    found: list[Delivery] = []
    interactive, bulk = keys.lanes
    reader = threading.Thread(target=lambda: found.extend(stream.wait(2_000, then={interactive: 9, bulk: 9})))
    reader.start()
    wait_until(lambda: blocked(redis_client), 10, "a blocked reader")
    admit(redis_client, keys, echoes(5, "burst"), lane=lane)
    reader.join(10)
    assert [one.lane for one in found] == [keys.lane(lane)] * 5
    settle_all(stream, found)


def test_given_more_than_there_is_room_for_when_read_after_a_wait_then_the_rest_stays(
    redis_client: redis.Redis, stream: QueueStream, keys: QueueKeys
) -> None:
    admit(redis_client, keys, echoes(9, "many"))
    first = stream.wait(1_000, then={keys.lanes[0]: 3, keys.lanes[1]: 0})
    assert len(first) == 4
    rest = stream.read({keys.lanes[0]: 100})
    assert len(rest) == 5
    settle_all(stream, [*first, *rest])


def test_given_nothing_when_waited_for_then_nothing_is_read(stream: QueueStream, keys: QueueKeys) -> None:
    assert stream.wait(5, then=dict.fromkeys(keys.lanes, 4)) == []


def test_given_both_lanes_and_more_than_one_call_holds_when_settled_then_each_has_its_answer(
    redis_client: redis.Redis, stream: QueueStream, keys: QueueKeys
) -> None:
    count = MOST_TOGETHER + 10
    admit(redis_client, keys, echoes(count, "live"))
    admit(redis_client, keys, echoes(count, "bulk"), lane=Lane.BULK)
    found = stream.read(dict.fromkeys(keys.lanes, 1_000))
    turned = [one for pair in zip(found[:count], found[count:], strict=True) for one in pair]
    settle_all(stream, turned)
    assert (redis_client.xlen(keys.lanes[0]), redis_client.xlen(keys.lanes[1])) == (0, 0)
    assert redis_client.llen(keys.inbox("p.1")) == 2 * count
    assert not redis_client.exists(keys.bytes)


def test_given_large_results_when_settled_then_no_call_holds_more_than_a_megabyte(
    redis_client: redis.Redis, stream: QueueStream, keys: QueueKeys
) -> None:
    admit(redis_client, keys, echoes(5, "large"))
    found = stream.read({keys.lanes[0]: 10})
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    ends = [
        Settlement(one.lane, one.stream_id, len(one.fields[b"m"]), "", keys.inbox("p.1"), bytes(400_000), 5_000)
        for one in found
    ]
    assert stream.settle(ends) == [1] * 5
    # Two to a call, and the first time each is made anew once the server knows the script
    made = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] - calls
    assert made in {3, 6}
    assert redis_client.llen(keys.inbox("p.1")) == 5
