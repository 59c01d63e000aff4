"""admit.lua against a real Redis: every rule of admission (docs/protocol.md)."""

from __future__ import annotations

import secrets

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clipfleet.schemas.keys import QueueKeys
from support.script_queue import ScriptQueue

FULL = "queue_full"


@pytest.fixture
def queue(redis_client, keys):
    queue = ScriptQueue(redis_client, keys)
    yield queue
    queue.drain()


def test_given_an_empty_queue_when_one_is_admitted_then_it_is_an_entry_with_a_deadline(queue, redis_client, keys):
    answer = queue.admit(5, ttl_ms=1_234)
    [(stream_id, fields)] = redis_client.xrange(keys.lanes[0])
    assert (answer.accepted, answer.answers) == (1, [stream_id.decode()])
    assert fields == {b"m": b"mmmmm", b"d": str(answer.now_ms + 1_234).encode()}
    # The deadline is by the server's clock, whatever the producer's says.
    assert abs(int(stream_id.split(b"-")[0]) - answer.now_ms) < 1_000
    assert queue.bytes_held() == 5
    assert 0 < redis_client.pttl(keys.call("p", 1)) <= 60_000


def test_given_the_bulk_lane_when_admitted_then_it_waits_there(queue):
    queue.admit(1, 1, lane="bulk")
    assert queue.lengths() == (0, 2)


def test_given_many_when_admitted_then_their_order_is_kept(queue, redis_client, keys):
    answer = queue.admit(*range(1, 101))
    entries = redis_client.xrange(keys.lanes[0])
    assert [stream_id.decode() for stream_id, _ in entries] == answer.answers
    assert [len(fields[b"m"]) for _, fields in entries] == list(range(1, 101))


def test_given_room_for_three_when_five_come_then_the_first_three_are_in(queue):
    queue.limits(capacity=3)
    answer = queue.admit(10, 20, 30, 40, 50)
    assert answer.accepted == 3
    assert answer.answers[3:] == [FULL, FULL]
    assert (queue.lengths(), queue.bytes_held()) == ((3, 0), 60)


def test_given_one_too_large_when_admitted_with_others_then_only_it_is_refused(queue):
    queue.limits(max_request_bytes=10)
    answer = queue.admit(10, 11, 10)
    assert (answer.accepted, answer.answers[1]) == (2, "too_large")
    assert (queue.lengths(), queue.bytes_held()) == ((2, 0), 20)


@pytest.mark.parametrize("limits", [{"max_request_bytes": 1_000, "max_queue_bytes": 100}, {"max_queue_bytes": 100}])
def test_given_one_that_even_an_empty_queue_cannot_hold_when_admitted_then_it_is_too_large(queue, limits):
    queue.limits(**limits)
    answer = queue.admit(60, 101, 40)
    assert (answer.accepted, answer.answers[1]) == (2, "too_large"), "queue_full would be said of it for ever"


def test_given_one_malformed_when_admitted_with_others_then_only_it_is_refused(queue):
    answer = queue.admit_raw("interactive", "a1", 5_000, b"m", "a b", 5_000, b"m", "a2", 5_000, b"m")
    assert (answer.accepted, answer.answers[1]) == (2, "bad_request")


def test_given_the_queue_got_full_when_others_follow_then_they_are_full_too_whatever_they_are(queue):
    queue.limits(capacity=1, max_request_bytes=10)
    answer = queue.admit_raw("interactive", "a1", 5_000, b"m", "a2", 5_000, b"m", "a3", 5_000, b"m" * 11, "!", 0, b"m")
    assert (answer.accepted, answer.answers[1:]) == (1, [FULL, FULL, FULL])


def test_given_room_for_some_bytes_when_one_does_not_fit_then_no_later_one_overtakes_it(queue):
    queue.limits(max_queue_bytes=100)
    answer = queue.admit(60, 60, 1)
    assert (answer.accepted, answer.answers[1:]) == (1, [FULL, FULL])
    assert queue.bytes_held() == 60
    assert queue.admit(40).accepted == 1, "exactly full is allowed"
    assert queue.admit(1).answers == [FULL]


def test_given_bulk_has_its_share_when_more_comes_then_interactive_still_has_room(queue):
    queue.limits(capacity=4, bulk_capacity=2)
    assert queue.admit(1, 1, 1, lane="bulk").accepted == 2
    assert queue.admit(1, 1, 1).accepted == 2
    assert queue.lengths() == (2, 2)


def test_given_interactive_filled_the_queue_when_bulk_comes_then_it_is_refused_below_its_share(queue):
    queue.limits(capacity=4, bulk_capacity=3)
    queue.admit(1, 1, 1)
    assert queue.admit(1, 1, lane="bulk").accepted == 1


def test_given_no_share_is_set_when_bulk_comes_then_it_gets_nine_tenths(queue):
    queue.limits(capacity=10)
    assert queue.admit(*[1] * 10, lane="bulk").accepted == 9


@pytest.mark.parametrize("lane", ["interactive", "bulk"])
def test_given_a_full_queue_when_refused_then_no_key_and_no_byte_is_left_behind(queue, lane):
    queue.limits(capacity=0)
    before = queue.snapshot()
    answer = queue.admit(5, 5, lane=lane)
    assert (answer.accepted, answer.answers) == (0, [FULL, FULL])
    assert answer.retry_after_ms > 0
    assert queue.snapshot() == before


@pytest.mark.parametrize("size", [0, 11])
def test_given_only_bad_ones_when_refused_then_no_key_and_no_byte_is_left_behind(queue, size):
    queue.limits(max_request_bytes=10)
    before = queue.snapshot()
    assert queue.admit_raw("interactive", "a b" if size == 0 else "a1", 5_000, b"m" * size).accepted == 0
    assert queue.snapshot() == before


def test_given_no_requests_when_called_then_nothing_is_accepted_and_nothing_written(queue):
    answer = queue.admit()
    assert (answer.accepted, answer.retry_after_ms, answer.answers) == (0, 1_000, [])
    assert queue.snapshot() == {}


def test_given_a_lost_answer_when_the_call_is_retried_then_the_same_answer_comes_and_nothing_is_added(queue):
    queue.limits(capacity=3, max_request_bytes=10)
    first = queue.admit(1, 11, 2, 3, 4, call=7)
    assert first.accepted == 3
    before = queue.snapshot()
    assert queue.admit(1, 11, 2, 3, 4, call=7) == first
    assert queue.snapshot() == before


def test_given_a_lost_answer_when_retried_after_the_queue_was_emptied_then_still_nothing_is_added(queue):
    queue.group()
    first = queue.admit(1, 1, call=7)
    for stream_id in queue.deliver():
        queue.settle(stream_id)
    assert queue.admit(1, 1, call=7) == first
    assert queue.lengths() == (0, 0)


def test_given_a_refused_call_when_retried_with_room_then_it_is_judged_afresh(queue):
    queue.limits(capacity=0)
    assert queue.admit(1, call=7).accepted == 0
    queue.limits(capacity=1)
    assert queue.admit(1, call=7).accepted == 1


def test_given_another_call_key_when_the_same_request_comes_then_it_is_another_entry(queue):
    assert queue.admit(1, call=1).answers != queue.admit(1, call=2).answers
    assert queue.lengths() == (2, 0)


def test_given_redis_at_maxmemory_when_admitted_then_the_queue_is_full_and_nothing_is_left_behind(queue):
    before = queue.snapshot()
    with queue.at_maxmemory():
        answer = queue.admit(5, 5)
        assert (answer.accepted, answer.answers) == (0, [FULL, FULL])
        assert 50 <= answer.retry_after_ms <= 30_000
        assert queue.snapshot() == before
    assert queue.admit(5, 5, call=1).accepted == 2


def fill(queue: ScriptQueue, lane: int, number: int) -> None:
    pipe = queue.redis.pipeline(transaction=False)
    for _ in range(number):
        pipe.xadd(queue.keys.lanes[lane], {"m": b""})
    pipe.execute()


def test_given_no_worker_yet_when_admitted_then_the_default_capacity_holds(queue, redis_client):
    fill(queue, 1, 8_999)
    assert queue.admit(1, 1, lane="bulk").accepted == 1
    fill(queue, 0, 999)
    assert queue.admit(1, 1).accepted == 1
    redis_client.flushall()  # ten thousand are quicker forgotten than settled


def test_given_no_worker_yet_when_admitted_then_the_default_sizes_hold(queue, redis_client, keys):
    redis_client.set(keys.bytes, 268_435_456 - 8_388_608)
    answer = queue.admit(8_388_609, 8_388_608, 1)
    assert answer.answers[0] == "too_large"
    assert (answer.accepted, answer.answers[2]) == (1, FULL)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (None, 1_000),
        ("0", 1_000),
        ("-5", 1_000),
        ("nan", 1_000),
        ("garbage", 1_000),
        ("inf", 50),
        ("1e9", 50),
        ("100", 100),
        ("7", 1_429),
        ("0.5", 20_000),
        ("0.01", 30_000),
        ("1e-300", 30_000),
    ],
)
def test_given_a_measured_rate_when_answered_then_retry_after_is_backlog_over_rate_in_bounds(queue, rate, expected):
    queue.limits(capacity=10, **({} if rate is None else {"rate": rate}))
    answer = queue.admit(*[1] * 11)
    assert answer.accepted == 10
    assert answer.retry_after_ms == expected


@pytest.mark.parametrize("ttl", [1, 86_400_000])
def test_given_a_time_to_live_at_its_bounds_when_admitted_then_it_is_in(queue, ttl):
    assert queue.admit(1, ttl_ms=ttl).accepted == 1


BAD_TTLS = ["", "0", "-1", "86400001", "1.5", "nan", "inf", "0x10", "1e3", " 5", "5 ", "9" * 400, "ten", "5\0"]


@pytest.mark.parametrize("ttl", BAD_TTLS)
def test_given_an_impossible_time_to_live_when_admitted_then_it_is_refused(queue, ttl):
    answer = queue.admit_raw("interactive", "a1", ttl, b"m")
    assert (answer.accepted, answer.answers) == (0, ["bad_request"])


BAD_IDS = [b"", b"a" * 65, b"x" * 10_000, b"a b", b"a.b", b"a:b", b"{q}", b"a\n", b"a\0b", "ä".encode(), b"\xff"]


@pytest.mark.parametrize("request_id", BAD_IDS, ids=lambda each: repr(each[:8]))
def test_given_an_impossible_id_when_admitted_then_it_is_refused(queue, request_id):
    assert queue.admit_raw("interactive", request_id, 5_000, b"m").answers == ["bad_request"]


@pytest.mark.parametrize("request_id", ["a", "A-_9", "z" * 64])
def test_given_a_possible_id_when_admitted_then_it_is_in(queue, request_id):
    assert queue.admit_raw("interactive", request_id, 5_000, b"m").accepted == 1


@pytest.mark.parametrize("rest", [["a1"], ["a1", 5_000]])
def test_given_half_a_request_when_admitted_then_it_is_refused(queue, rest):
    assert queue.admit_raw("interactive", *rest).answers == ["bad_request"]


def test_given_binary_bytes_when_admitted_then_they_arrive_as_they_were(queue, redis_client, keys):
    message = bytes(range(256)) * 4
    queue.admit_raw("interactive", "a1", 5_000, message)
    assert redis_client.xrange(keys.lanes[0])[0][1][b"m"] == message


@pytest.mark.parametrize("lane", ["", "Interactive", "dead", "result:a1"])
def test_given_no_lane_of_that_name_when_admitted_then_the_call_is_an_error_and_writes_nothing(queue, lane):
    with pytest.raises(redis.exceptions.ResponseError, match="interactive or bulk"):
        queue.admit(1, lane=lane)
    assert queue.snapshot() == {}


@pytest.mark.parametrize("which", range(5))
def test_given_a_key_of_another_type_when_admitted_then_the_call_is_an_error_and_writes_nothing(queue, which):
    key = queue.admit_keys(queue.keys.call("p", 1))[which]
    queue.redis.sadd(key, "x")
    before = queue.snapshot()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        queue.admit(1, call=1)
    assert queue.snapshot() == before
    queue.redis.delete(key)


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=8)
CALLS = st.lists(st.tuples(st.sampled_from(["interactive", "bulk"]), SIZES), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(CALLS, st.integers(0, 12), st.integers(0, 12), st.integers(1, 10), st.integers(0, 60))
def test_given_any_calls_when_admitted_then_it_is_as_the_rules_say(
    redis_client, calls, capacity, bulk_capacity, largest, most
):
    queue = ScriptQueue(redis_client, QueueKeys(f"q{secrets.token_hex(4)}"))
    queue.limits(capacity=capacity, bulk_capacity=bulk_capacity, max_request_bytes=largest, max_queue_bytes=most)
    lengths, held = {"interactive": 0, "bulk": 0}, 0
    for lane, sizes in calls:
        expected, full = [], False
        for size in sizes:
            total = sum(lengths.values())
            if not full and size > min(largest, most):
                expected.append("too_large")
                continue
            over = total >= capacity or (lane == "bulk" and lengths["bulk"] >= bulk_capacity) or held + size > most
            full = full or over
            expected.append(FULL if full else "in")
            if not full:
                lengths[lane] += 1
                held += size
        answer = queue.admit(*sizes, lane=lane)
        assert [each if each in {FULL, "too_large"} else "in" for each in answer.answers] == expected
        assert answer.accepted == expected.count("in")
        assert queue.lengths() == (lengths["interactive"], lengths["bulk"])
        assert queue.bytes_held() == (held if sum(lengths.values()) else None)
    queue.drain()
    assert queue.bytes_held() is None
