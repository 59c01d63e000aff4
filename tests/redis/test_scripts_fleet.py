"""heartbeat and join against a real Redis: who lives, and what all agree on."""

from __future__ import annotations

import pytest
import redis

from support.script_queue import ScriptQueue


@pytest.fixture
def queue(redis_client, keys):
    return ScriptQueue(redis_client, keys)


def test_given_a_worker_when_it_beats_then_it_is_seen_with_its_presence_for_a_while(queue, redis_client, keys):
    now = queue.heartbeat("w1", "host", "here", "rate", "12.5", ttl_ms=3_000)
    seconds, micros = redis_client.time()
    assert 0 <= seconds * 1_000 + micros // 1_000 - now < 5_000
    assert redis_client.zscore(keys.workers, "w1") == now
    assert redis_client.hgetall(keys.worker("w1")) == {b"host": b"here", b"rate": b"12.5"}
    assert 0 < redis_client.pttl(keys.worker("w1")) <= 3_000


def test_given_a_worker_when_it_beats_again_then_its_time_goes_on_and_other_fields_stay(queue, redis_client, keys):
    first = queue.heartbeat("w1", "host", "here", ttl_ms=100_000)
    redis_client.pexpire(keys.worker("w1"), 50_000)
    second = queue.heartbeat("w1", "rate", "1", ttl_ms=100_000)
    assert second >= first
    assert redis_client.hgetall(keys.worker("w1")) == {b"host": b"here", b"rate": b"1"}
    assert redis_client.pttl(keys.worker("w1")) > 50_000


@pytest.mark.parametrize("known", [True, False])
def test_given_redis_at_maxmemory_when_a_worker_beats_then_it_is_still_seen(queue, redis_client, keys, known):
    if known:
        queue.heartbeat("w1", "rate", "1")
    with queue.at_maxmemory():
        now = queue.heartbeat("w1", "rate", "2")
        assert redis_client.zscore(keys.workers, "w1") == now
        assert redis_client.hget(keys.worker("w1"), "rate") == b"2"
        assert redis_client.pttl(keys.worker("w1")) > 0


def test_given_no_fleet_when_the_first_worker_joins_then_its_settings_are_the_fleets(queue, redis_client, keys):
    assert queue.join("w1", v="1", capacity="500") == []
    assert redis_client.hgetall(keys.fleet) == {b"v": b"1", b"capacity": b"500"}
    assert redis_client.zscore(keys.workers, "w1") is not None


def test_given_a_living_fleet_when_one_that_agrees_joins_then_it_is_in(queue, redis_client, keys):
    queue.join("w1", v="1", capacity="500")
    assert queue.join("w2", v="1", capacity="500") == []
    assert redis_client.zcard(keys.workers) == 2


def test_given_a_living_fleet_when_one_that_differs_joins_then_each_difference_is_named_and_nothing_changes(queue):
    queue.join("w1", v="1", capacity="500", fingerprint="aa")
    before = queue.snapshot()
    assert queue.join("w2", v="1", capacity="600", fingerprint="bb") == [
        "capacity", "500", "600",
        "fingerprint", "aa", "bb",
    ]  # fmt: skip
    assert queue.snapshot() == before


def test_given_a_living_fleet_when_one_brings_a_new_field_then_it_is_added(queue, redis_client, keys):
    queue.join("w1", v="1")
    redis_client.hset(keys.fleet, "rate", "7")
    assert queue.join("w2", v="1", features="x") == []
    assert redis_client.hgetall(keys.fleet) == {b"v": b"1", b"features": b"x", b"rate": b"7"}


def test_given_a_difference_when_a_new_field_comes_along_then_it_is_not_added_either(queue, redis_client, keys):
    queue.join("w1", v="1")
    assert queue.join("w2", v="2", features="x") == ["v", "1", "2"]
    assert redis_client.hexists(keys.fleet, "features") is False


def test_given_no_living_worker_when_one_that_differs_joins_then_the_fleet_is_its_own(queue, redis_client, keys):
    queue.join("w1", v="1", capacity="500")
    redis_client.zadd(keys.workers, {"w1": 1})  # its last heartbeat was long ago
    assert queue.join("w2", v="1", capacity="600") == []
    assert redis_client.hget(keys.fleet, "capacity") == b"600"


def test_given_a_living_fleet_when_forced_then_it_is_changed(queue, redis_client, keys):
    queue.join("w1", v="1", capacity="500")
    assert queue.join("w2", force=True, v="1", capacity="600") == []
    assert redis_client.hget(keys.fleet, "capacity") == b"600"


def test_given_no_name_when_settings_are_changed_then_no_worker_is_entered(queue, redis_client, keys):
    assert queue.join("", force=True, capacity="600") == []
    assert redis_client.exists(keys.workers) == 0


def test_given_names_not_heard_of_for_a_day_when_one_joins_then_they_are_forgotten(queue, redis_client, keys):
    now = queue.heartbeat("w0")
    redis_client.zadd(keys.workers, {"old": now - 86_500_000, "yesterday": now - 80_000_000})
    queue.join("w1", v="1")
    assert set(redis_client.zrange(keys.workers, 0, -1)) == {b"w0", b"w1", b"yesterday"}


def test_given_redis_at_maxmemory_when_a_worker_joins_only_then_it_is_in_and_can_drain(queue, redis_client, keys):
    queue.join("w1", v="1")
    redis_client.delete(keys.workers)
    with queue.at_maxmemory():
        assert queue.join("w2", v="1", capacity="9") == []
        assert redis_client.zscore(keys.workers, "w2") is not None


@pytest.mark.parametrize("which", [0, 1])
def test_given_a_key_of_another_type_when_joined_then_nothing_is_written(queue, redis_client, keys, which):
    key = (keys.fleet, keys.workers)[which]
    redis_client.set(key, "x", ex=60)
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        queue.join("w1", v="1")
    assert queue.snapshot() == before
