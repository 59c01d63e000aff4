"""settle.lua against a real Redis: one answer, first wins, and nothing can fail between XACK and the answer."""

from __future__ import annotations

import pytest
import redis

from support.script_queue import ScriptQueue


@pytest.fixture
def queue(redis_client, keys):
    queue = ScriptQueue(redis_client, keys)
    queue.group()
    yield queue
    queue.drain()


def test_given_a_delivered_entry_when_settled_then_it_is_answered_and_gone(queue, redis_client, keys):
    [stream_id] = queue.delivered(5)
    assert queue.settle(stream_id, size=5, result=b"\x00\xff answer", ttl_ms=5_000) == 1
    result = keys.result("a1")
    assert redis_client.lrange(result, 0, -1) == [b"\x00\xff answer"]
    assert 0 < redis_client.pttl(result) <= 5_000
    assert (queue.lengths(), queue.pending(), queue.bytes_held()) == ((0, 0), {}, None)


def test_given_a_result_when_read_with_a_blocking_peek_then_it_stays_for_the_next_reader(queue, redis_client, keys):
    [stream_id] = queue.delivered(1)
    queue.settle(stream_id, result=b"answer")
    result = keys.result("a1")
    for _ in range(3):
        assert redis_client.blmove(result, result, 1, "LEFT", "LEFT") == b"answer"
        assert redis_client.pttl(result) > 0


def test_given_it_was_settled_when_another_settles_then_the_first_answer_stands(queue, redis_client, keys):
    [stream_id] = queue.delivered(5)
    assert queue.settle(stream_id, size=5, result=b"first", ttl_ms=1_000) == 1
    assert queue.settle(stream_id, size=5, result=b"second", ttl_ms=9_000, dead=("error", "x")) == 0
    assert queue.settle(stream_id, size=5, result=b"third", owner="w1") == 0
    assert redis_client.lrange(keys.result("a1"), 0, -1) == [b"first"]
    assert redis_client.pttl(keys.result("a1")) <= 1_000
    assert redis_client.exists(keys.dead) == 0


def test_given_a_stale_owner_when_it_brings_a_success_then_it_counts(queue, redis_client, keys):
    [stream_id] = queue.delivered(1)
    queue.age(stream_id, consumer="w2")
    assert queue.settle(stream_id, owner="") == 1
    assert redis_client.llen(keys.result("a1")) == 1


def test_given_a_stale_owner_when_it_brings_a_failure_of_its_own_then_nothing_changes(queue):
    [stream_id] = queue.delivered(5)
    queue.age(stream_id, consumer="w2", deliveries=2)
    before = queue.snapshot()
    assert queue.settle(stream_id, owner="w1", dead=("error", "poisoned")) == -1
    assert queue.snapshot() == before
    assert queue.settle(stream_id, size=5, owner="w2") == 1


def test_given_a_consumer_whose_name_begins_alike_when_it_settles_then_it_is_no_owner(queue):
    [stream_id] = queue.delivered(1, consumer="w10")
    assert queue.settle(stream_id, owner="w1") == -1


def test_given_an_entry_that_nobody_has_read_when_settled_then_nothing_changes(queue):
    [stream_id] = queue.admit(5).answers
    before = queue.snapshot()
    assert queue.settle(stream_id, size=5) == 0
    assert queue.settle(stream_id, size=5, owner="w1") == 0
    assert queue.snapshot() == before


def test_given_no_group_when_settled_without_an_owner_then_nothing_changes(redis_client, keys, queue):
    [stream_id] = queue.admit(5).answers
    redis_client.xgroup_destroy(keys.lanes[0], "workers")
    assert queue.settle(stream_id, size=5) == 0
    assert queue.lengths() == (1, 0)


@pytest.mark.parametrize("make", ["set", "hset", "sadd", "zadd", "xadd"])
def test_given_a_reply_to_of_another_type_when_settled_then_the_request_is_still_queued(
    queue, make, redis_client, keys
):
    target = keys.inbox("p.1")
    {
        "set": lambda: redis_client.set(target, "x", px=60_000),
        "hset": lambda: redis_client.hset(target, "a", "x"),
        "sadd": lambda: redis_client.sadd(target, "x"),
        "zadd": lambda: redis_client.zadd(target, {"x": 1}),
        "xadd": lambda: redis_client.xadd(target, {"a": "x"}),
    }[make]()
    [stream_id] = queue.delivered(5)
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        queue.settle(stream_id, size=5, reply_to=target, dead=("error", "x"))
    assert queue.snapshot() == before, "an error after XACK would have lost the answer for good"
    assert queue.settle(stream_id, size=5) == 1
    redis_client.delete(target)


@pytest.mark.parametrize("dead", [("error",), ("a", "b", "c"), tuple("x" * 200)])
def test_given_a_dead_letter_that_cannot_be_written_when_settled_then_the_request_is_still_queued(queue, dead):
    [stream_id] = queue.delivered(5)
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="dead letter"):
        queue.settle(stream_id, size=5, dead=dead)
    assert queue.snapshot() == before


def test_given_a_dead_key_of_another_type_when_settled_then_the_request_is_still_queued(queue, redis_client, keys):
    redis_client.set(keys.dead, "x")
    [stream_id] = queue.delivered(5)
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="dead letter"):
        queue.settle(stream_id, size=5, dead=("error", "x"))
    assert queue.snapshot() == before
    assert queue.settle(stream_id, size=5) == 1, "without a dead letter its key does not matter"


def test_given_another_lane_of_another_type_when_settled_then_the_request_is_still_queued(queue, redis_client, keys):
    redis_client.delete(keys.lanes[1])
    redis_client.set(keys.lanes[1], "x")
    [stream_id] = queue_with_one_lane(queue)
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        queue.settle(stream_id)
    assert queue.snapshot() == before
    redis_client.delete(keys.lanes[1])


def queue_with_one_lane(queue: ScriptQueue) -> list[str]:
    queue.redis.xadd(queue.keys.lanes[0], {"m": b"m"})
    return queue.deliver()


@pytest.mark.parametrize("ttl", ["", "-1", "nan", "inf", "0.5", "1e3", "0x10", "86400001", "ten"])
def test_given_an_impossible_ttl_when_settled_then_the_request_is_still_queued(queue, ttl):
    [stream_id] = queue.delivered(5)
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="reply_ttl_ms"):
        queue.settle(stream_id, size=5, ttl_ms=ttl)
    assert queue.snapshot() == before


@pytest.mark.parametrize("ttl", [1, 86_400_000])
def test_given_a_ttl_at_its_bounds_when_settled_then_it_is_answered(queue, ttl):
    [stream_id] = queue.delivered(1)
    assert queue.settle(stream_id, ttl_ms=ttl) == 1


def test_given_nobody_to_answer_when_settled_then_the_dead_letter_alone_is_written(queue, redis_client, keys):
    [stream_id] = queue.delivered(5)
    assert (
        queue.settle(stream_id, size=5, ttl_ms=0, reply_to=keys.dead, dead=("error", "no msgpack", "m", b"\xc1")) == 1
    )
    [(_, letter)] = redis_client.xrange(keys.dead)
    assert letter == {b"error": b"no msgpack", b"m": b"\xc1"}
    assert redis_client.exists(keys.result("a1")) == 0
    assert (queue.lengths(), queue.bytes_held()) == ((0, 0), None)


def test_given_a_dead_letter_when_settled_then_the_request_is_answered_too(queue, redis_client, keys):
    [stream_id] = queue.delivered(5, consumer="w1")
    assert queue.settle(stream_id, size=5, owner="w1", dead=("error", "poisoned", "deliveries", 4)) == 1
    assert redis_client.llen(keys.result("a1")) == 1
    assert redis_client.xlen(keys.dead) == 1


def test_given_a_thousand_dead_letters_when_another_comes_then_the_oldest_goes(queue, redis_client, keys):
    pipe = redis_client.pipeline(transaction=False)
    for number in range(1_000):
        pipe.xadd(keys.dead, {"n": number})
    pipe.execute()
    [stream_id] = queue.delivered(1)
    queue.settle(stream_id, dead=("n", "new"))
    letters = redis_client.xrange(keys.dead)
    assert len(letters) == 1_000
    assert (letters[0][1][b"n"], letters[-1][1][b"n"]) == (b"1", b"new")


def test_given_an_inbox_when_several_are_settled_then_all_are_there_in_order_and_its_ttl_is_renewed(
    queue, redis_client, keys
):
    inbox = keys.inbox("p.1")
    ids = queue.delivered(1, 1, 1)
    for number, stream_id in enumerate(ids):
        queue.settle(stream_id, reply_to=inbox, result=b"r%d" % number, ttl_ms=1_000 * (number + 1))
    assert redis_client.lrange(inbox, 0, -1) == [b"r0", b"r1", b"r2"]
    assert 2_000 < redis_client.pttl(inbox) <= 3_000


def test_given_several_in_both_lanes_when_settled_one_by_one_then_the_bytes_follow(queue):
    queue.admit(10, 20)
    queue.admit(40, lane="bulk")
    first, second = queue.deliver()
    [third] = queue.deliver(lane=1)
    assert queue.bytes_held() == 70
    queue.settle(first, size=10)
    assert queue.bytes_held() == 60
    queue.settle(third, size=40, lane=1)
    assert queue.bytes_held() == 20
    queue.settle(second, size=20)
    assert queue.bytes_held() is None


def test_given_one_lane_is_empty_when_the_other_is_not_then_the_bytes_stay(queue):
    queue.admit(10)
    queue.admit(40, lane="bulk")
    [stream_id] = queue.deliver()
    queue.settle(stream_id, size=10)
    assert queue.bytes_held() == 40


def test_given_a_bare_xadd_when_settled_with_size_zero_then_the_bytes_of_others_stay(queue, redis_client, keys):
    redis_client.xadd(keys.lanes[0], {"m": b"x" * 1_000})
    queue.admit(10)
    bare, admitted = queue.deliver()
    queue.settle(bare, size=0)
    assert queue.bytes_held() == 10
    queue.settle(admitted, size=10)
    assert queue.bytes_held() is None


@pytest.mark.parametrize("held", [None, "3", "garbage"])
def test_given_a_damaged_count_of_bytes_when_settled_then_it_never_goes_below_zero(queue, redis_client, keys, held):
    first, _ = queue.delivered(10, 10)
    redis_client.delete(keys.bytes)
    if held is not None:
        redis_client.set(keys.bytes, held)
    assert queue.settle(first, size=10) == 1
    assert queue.bytes_held() is None
    assert redis_client.llen(keys.result("a1")) == 1


def test_given_redis_at_maxmemory_when_settled_then_a_full_queue_drains(queue, redis_client, keys):
    ids = queue.delivered(*[10] * 20)
    with queue.at_maxmemory():
        for number, stream_id in enumerate(ids):
            dead = ("error", "x") if number == 0 else ()
            assert queue.settle(stream_id, size=10, owner="w1", reply_to=keys.inbox("p.1"), dead=dead) == 1
        assert len(redis_client.lrange(keys.inbox("p.1"), 0, -1)) == 20
        assert (queue.lengths(), queue.bytes_held()) == ((0, 0), None)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            redis_client.blmove(keys.inbox("p.1"), keys.inbox("p.1"), 1, "LEFT", "LEFT")
        assert redis_client.ltrim(keys.inbox("p.1"), 20, -1)


def test_given_redis_at_maxmemory_when_settles_are_pipelined_then_all_are_answered(queue, redis_client, keys):
    ids = queue.delivered(10, 10)
    with queue.at_maxmemory(), redis_client.pipeline(transaction=False) as pipe:
        for stream_id in ids:
            ScriptQueue(pipe, keys).settle(stream_id, size=10)
        assert pipe.execute() == [1, 1]
