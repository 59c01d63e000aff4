"""settle_many.lua against a real Redis: each request ends as by settle.lua, and none minds its neighbours."""

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


def test_given_several_when_settled_together_then_each_is_answered_where_it_asked(queue, redis_client, keys):
    one, two, three = queue.delivered(5, 6, 7)
    inbox, own = keys.inbox("p.1"), keys.result("own")
    answers = queue.settle_many(
        (one, 5, inbox, b"\x00\xff first"), (two, 6, own, b"own"), (three, 7, inbox, b"last"), ttls={inbox: 9_000}
    )
    assert answers == [1, 1, 1]
    assert redis_client.lrange(inbox, 0, -1) == [b"\x00\xff first", b"last"]
    assert redis_client.lrange(own, 0, -1) == [b"own"]
    assert 5_000 < redis_client.pttl(inbox) <= 9_000
    assert 0 < redis_client.pttl(own) <= 5_000
    assert (queue.lengths(), queue.pending(), queue.bytes_held()) == ((0, 0), {}, None)


def test_given_some_were_settled_before_when_settled_together_then_the_first_answers_stand(queue, redis_client, keys):
    one, two = queue.delivered(5, 6)
    inbox = keys.inbox("p.1")
    assert queue.settle(one, size=5, reply_to=inbox, result=b"first") == 1
    assert queue.settle_many((one, 5, inbox, b"second"), (two, 6, inbox, b"two"), (two, 6, inbox, b"again")) == [
        0,
        1,
        0,
    ]
    assert redis_client.lrange(inbox, 0, -1) == [b"first", b"two"]
    assert queue.bytes_held() is None


def test_given_all_were_settled_before_when_settled_together_then_nothing_changes(queue, keys):
    ids = queue.delivered(5, 6, 7)
    for one in ids[:2]:
        queue.settle(one, size=5, reply_to=keys.inbox("p.1"))
    before = queue.snapshot()
    assert queue.settle_many(*((one, 5, keys.inbox("p.1"), b"late") for one in ids[:2])) == [0, 0]
    assert queue.snapshot() == before


def test_given_entries_that_nobody_has_read_when_settled_together_then_nothing_changes(queue, keys):
    ids = queue.admit(5, 5).answers
    before = queue.snapshot()
    assert queue.settle_many(*((one, 5, keys.inbox("p.1"), b"r") for one in ids)) == [0, 0]
    assert queue.snapshot() == before


@pytest.mark.parametrize("make", ["set", "hset", "sadd", "xadd"])
def test_given_a_reply_to_of_another_type_when_settled_together_then_only_its_request_stays(
    queue, make, redis_client, keys
):
    target = keys.result("bad")
    {
        "set": lambda: redis_client.set(target, "x"),
        "hset": lambda: redis_client.hset(target, "a", "x"),
        "sadd": lambda: redis_client.sadd(target, "x"),
        "xadd": lambda: redis_client.xadd(target, {"a": "x"}),
    }[make]()
    one, bad, two = queue.delivered(5, 6, 7)
    inbox = keys.inbox("p.1")
    assert queue.settle_many((one, 5, inbox, b"one"), (bad, 6, target, b"bad"), (two, 7, inbox, b"two")) == [1, -1, 1]
    assert redis_client.lrange(inbox, 0, -1) == [b"one", b"two"]
    assert (list(queue.pending()), queue.bytes_held()) == ([bad], 6)
    redis_client.delete(target)


@pytest.mark.parametrize("stream_id", ["", "no id", "1-2-3"])
def test_given_what_is_no_stream_id_when_settled_together_then_its_neighbours_are_answered(
    queue, redis_client, keys, stream_id
):
    one, two = queue.delivered(5, 6)
    inbox = keys.inbox("p.1")
    assert queue.settle_many((one, 5, inbox, b"one"), (stream_id, 1, inbox, b"no"), (two, 6, inbox, b"two")) == [
        1,
        -1,
        1,
    ]
    assert redis_client.lrange(inbox, 0, -1) == [b"one", b"two"]


@pytest.mark.parametrize("ttl", ["", "0", "-1", "nan", "0.5", "1e3", "86400001", "ten"])
def test_given_an_impossible_ttl_when_settled_together_then_all_are_still_queued(queue, keys, ttl):
    [stream_id] = queue.delivered(5)
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="reply_ttl_ms"):
        queue.settle_many((stream_id, 5, keys.inbox("p.1"), b"r"), ttls={keys.inbox("p.1"): ttl})
    assert queue.snapshot() == before


def test_given_another_lane_of_another_type_when_settled_together_then_all_are_still_queued(queue, redis_client, keys):
    redis_client.delete(keys.lanes[1])
    redis_client.set(keys.lanes[1], "x")
    redis_client.xadd(keys.lanes[0], {"m": b"m"})
    [stream_id] = queue.deliver()
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        queue.settle_many((stream_id, 0, keys.inbox("p.1"), b"r"))
    assert queue.snapshot() == before
    redis_client.delete(keys.lanes[1])


@pytest.mark.parametrize("broken", ["none", "odd", "many", "no reply_to"])
def test_given_a_call_of_another_shape_when_made_then_nothing_changes(queue, keys, broken):
    ids = queue.delivered(*[1] * 3)
    before = queue.snapshot()
    named = [*keys.lanes, keys.bytes, keys.inbox("p.1")]
    args = {
        "none": [5_000],
        "odd": [5_000, ids[0], 1, 1],
        "many": [5_000, *[ids[0], 1, 1, b"r"] * 1_001],
        "no reply_to": [ids[0], 1, 1, b"r"],
    }[broken]
    with pytest.raises(redis.exceptions.ResponseError, match="settle_many"):
        queue.run("settle_many", named[:3] if broken == "no reply_to" else named, *args)
    assert queue.snapshot() == before


def test_given_a_thousand_when_settled_together_then_all_are_answered_in_order(queue, redis_client, keys):
    ids = queue.delivered(*[1] * 1_000)
    inbox = keys.inbox("p.1")
    assert queue.settle_many(*((one, 1, inbox, b"%d" % place) for place, one in enumerate(ids))) == [1] * 1_000
    assert redis_client.lrange(inbox, 0, -1) == [b"%d" % place for place in range(1_000)]


def test_given_both_lanes_when_one_is_settled_together_then_the_bytes_of_the_other_stay(queue, keys):
    queue.admit(10, 20)
    queue.admit(40, lane="bulk")
    ids, [bulk] = queue.deliver(), queue.deliver(lane=1)
    queue.settle_many(*((one, size, keys.inbox("p.1"), b"r") for one, size in zip(ids, (10, 20), strict=True)))
    assert queue.bytes_held() == 40
    queue.settle_many((bulk, 40, keys.inbox("p.1"), b"r"), lane=1)
    assert queue.bytes_held() is None


def test_given_a_bare_xadd_when_settled_together_then_the_bytes_of_others_stay(queue, redis_client, keys):
    redis_client.xadd(keys.lanes[0], {"m": b"x" * 1_000})
    queue.admit(10)
    [bare, _] = queue.deliver()
    queue.settle_many((bare, 0, keys.inbox("p.1"), b"r"))
    assert queue.bytes_held() == 10


@pytest.mark.parametrize("held", [None, "3", "garbage"])
def test_given_a_damaged_count_of_bytes_when_settled_together_then_it_never_goes_below_zero(
    queue, redis_client, keys, held
):
    first, second, _ = queue.delivered(10, 10, 10)
    redis_client.delete(keys.bytes)
    if held is not None:
        redis_client.set(keys.bytes, held)
    assert queue.settle_many(*((one, 10, keys.inbox("p.1"), b"r") for one in (first, second))) == [1, 1]
    assert queue.bytes_held() is None


def test_given_redis_at_maxmemory_when_settled_together_then_a_full_queue_drains(queue, redis_client, keys):
    ids = queue.delivered(*[10] * 20)
    inbox = keys.inbox("p.1")
    with queue.at_maxmemory():
        # The first was settled by another: the call's first XACK then writes nothing, and the rest must go through.
        assert queue.settle(ids[0], size=10, reply_to=inbox) == 1
        assert queue.settle_many(*((one, 10, inbox, b"r") for one in ids)) == [0, *[1] * 19]
        assert redis_client.llen(inbox) == 20
        assert (queue.lengths(), queue.bytes_held()) == ((0, 0), None)
