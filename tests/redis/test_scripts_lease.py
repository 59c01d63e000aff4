"""reclaim, renew, handback and leave against a real Redis: who owns an entry, and how often it was run."""

from __future__ import annotations

import pytest
import redis

from support.script_queue import LEASE_MS, ScriptQueue


@pytest.fixture
def queue(redis_client, keys):
    queue = ScriptQueue(redis_client, keys)
    queue.group()
    yield queue
    queue.drain()


def aged(queue: ScriptQueue, *deliveries: int, idle_ms: int = LEASE_MS) -> list[str]:
    """Entries of a dead worker w1, each delivered so many times; 0 = handed back unrun."""
    ids = queue.delivered(*[1] * len(deliveries))
    for stream_id, number in zip(ids, deliveries, strict=True):
        queue.age(stream_id, deliveries=number, idle_ms=idle_ms)
    return ids


# ---------------------------------------------------------------------- reclaim


def test_given_a_lease_that_runs_when_reclaimed_then_nothing_is_taken(queue):
    aged(queue, 0, 1, 3, idle_ms=LEASE_MS - 5_000)
    assert queue.reclaim() == ("-", 0, [])


def test_given_nothing_pending_when_reclaimed_then_nothing_is_taken(queue):
    assert queue.reclaim() == ("-", 0, [])


def test_given_no_group_when_reclaimed_then_the_error_says_so(queue, redis_client, keys):
    redis_client.delete(keys.lanes[0])
    with pytest.raises(redis.exceptions.ResponseError, match="NOGROUP"):
        queue.reclaim()


def test_given_work_handed_back_unrun_when_reclaimed_then_it_is_taken_in_bulk_as_far_as_there_is_room(queue):
    ids = aged(queue, 0, 0, 0, 0, 0)
    assert queue.reclaim(room=3, solo=False) == ("(" + ids[2], 0, [(each, 1) for each in ids[:3]])
    assert queue.reclaim(room=3, solo=False) == ("-", 0, [(each, 1) for each in ids[3:]])
    assert queue.pending() == dict.fromkeys(ids, ("w2", 1))


def test_given_work_that_is_only_handed_back_again_when_reclaimed_on_then_what_waits_behind_it_has_its_turn(queue):
    first, second, third = aged(queue, 0, 0, 0)
    cursor, _, taken = queue.reclaim(room=2, solo=False)
    assert taken == [(first, 1), (second, 1)]
    assert queue.handback("w2", (first, 0), (second, 0)) == 2
    assert queue.reclaim(room=2, solo=False, cursor=cursor) == ("-", 0, [(third, 1)])


def test_given_no_room_when_reclaimed_then_nothing_is_taken(queue):
    aged(queue, 0, 3)
    assert queue.reclaim(room=0)[2] == []


def test_given_suspects_when_reclaimed_by_a_worker_that_holds_something_then_they_are_left(queue):
    ids = aged(queue, 1, 2, 1)
    assert queue.reclaim(solo=False) == ("-", 3, [])
    assert queue.pending() == {ids[0]: ("w1", 1), ids[1]: ("w1", 2), ids[2]: ("w1", 1)}


def test_given_suspects_when_reclaimed_by_a_worker_that_holds_nothing_then_one_is_taken(queue):
    first, second, third = aged(queue, 1, 2, 1)
    assert queue.reclaim() == ("-", 2, [(first, 2)])
    assert queue.reclaim() == ("-", 1, [(second, 3)])
    # The bystanders' counts are as they were: only the one that is run is a death nearer.
    assert queue.pending() == {first: ("w2", 2), second: ("w2", 3), third: ("w1", 1)}


def test_given_a_suspect_behind_others_when_those_are_taken_then_it_is_left(queue):
    first, _ = aged(queue, 0, 1)
    assert queue.reclaim() == ("-", 1, [(first, 1)])


def test_given_a_suspect_before_others_when_it_is_taken_then_it_stands_alone(queue):
    suspect, _, _ = aged(queue, 1, 0, 0)
    assert queue.reclaim() == ("(" + suspect, 0, [(suspect, 2)])


@pytest.mark.parametrize("solo", [True, False])
def test_given_the_poisoned_when_reclaimed_then_they_are_taken_at_once_to_be_buried(queue, solo):
    ids = aged(queue, 3, 7)
    assert queue.reclaim(solo=solo) == ("-", 0, [(ids[0], 4), (ids[1], 8)])


def test_given_a_limit_of_deliveries_when_reclaimed_then_it_decides_who_is_poisoned(queue):
    [stream_id] = aged(queue, 1)
    assert queue.reclaim(solo=False, max_deliveries=1) == ("-", 0, [(stream_id, 2)])


def test_given_one_taken_when_looked_at_then_its_lease_is_new_and_its_fields_came_along(queue, keys):
    [stream_id] = aged(queue, 1)
    _, _, [(taken, fields, deliveries)] = queue.run("reclaim", [keys.lanes[0]], "w2", LEASE_MS, 1, 3, "1", "-")
    assert (taken.decode(), deliveries) == (stream_id, 2)
    assert dict(zip(fields[::2], fields[1::2], strict=True))[b"m"] == b"m"
    assert queue.idle_ms(stream_id) < LEASE_MS / 2
    assert queue.reclaim("w3") == ("-", 0, [])


def test_given_ones_own_stale_entry_when_reclaimed_then_it_comes_back_too(queue):
    [stream_id] = aged(queue, 0)
    assert queue.reclaim("w1") == ("-", 0, [(stream_id, 1)])


def test_given_an_entry_deleted_under_our_feet_when_reclaimed_then_it_is_forgotten(queue, redis_client, keys):
    deleted, kept = aged(queue, 0, 0)
    redis_client.xdel(keys.lanes[0], deleted)
    assert queue.reclaim() == ("-", 0, [(kept, 1)])
    assert list(queue.pending()) == [kept]


def test_given_a_deleted_suspect_when_reclaimed_then_the_next_one_gets_its_turn(queue, redis_client, keys):
    deleted, kept = aged(queue, 1, 1)
    redis_client.xdel(keys.lanes[0], deleted)
    assert queue.reclaim() == ("-", 0, [(kept, 2)])


def test_given_more_suspects_than_a_page_when_reclaimed_on_by_the_cursor_then_what_follows_is_reached(queue):
    ids = aged(queue, *[1] * 300, 0)
    cursor, suspects, taken = queue.reclaim(solo=False)
    assert (cursor, suspects, taken) == ("(" + ids[255], 256, [])
    assert queue.reclaim(solo=False, cursor=cursor) == ("-", 44, [(ids[300], 1)])


def test_given_exactly_a_page_when_reclaimed_on_by_the_cursor_then_it_ends(queue):
    aged(queue, *[1] * 256)
    cursor, _, _ = queue.reclaim(solo=False)
    assert queue.reclaim(solo=False, cursor=cursor) == ("-", 0, [])


def test_given_redis_at_maxmemory_when_reclaimed_and_renewed_then_both_work(queue):
    [stream_id] = aged(queue, 0)
    with queue.at_maxmemory():
        assert queue.reclaim() == ("-", 0, [(stream_id, 1)])
        assert queue.renew("w2", stream_id) == []
        assert queue.handback("w2", (stream_id, 0)) == 1
        assert queue.leave("w2") == 0


# ---------------------------------------------------------------------- renew


def test_given_owned_entries_when_renewed_then_their_leases_are_new_and_their_counts_are_kept(queue):
    ids = aged(queue, 2, 1)
    assert queue.renew("w1", *ids) == []
    assert max(queue.idle_ms(each) for each in ids) < LEASE_MS / 2
    assert queue.pending() == {ids[0]: ("w1", 2), ids[1]: ("w1", 1)}
    assert queue.reclaim() == ("-", 0, [])


def test_given_an_entry_reclaimed_by_another_when_renewed_then_it_is_not_stolen_back(queue):
    lost, kept = aged(queue, 0, 0)
    queue.age(lost, consumer="w2", idle_ms=7_000)
    assert queue.renew("w1", lost, kept) == [lost]
    assert queue.pending() == {lost: ("w2", 1), kept: ("w1", 0)}
    assert queue.idle_ms(lost) >= 7_000


def test_given_a_settled_entry_when_renewed_then_it_is_lost_and_not_revived(queue):
    [stream_id] = queue.delivered(1)
    queue.settle(stream_id)
    assert queue.renew("w1", stream_id) == [stream_id]
    assert queue.pending() == {}


def test_given_nothing_held_when_renewed_then_nothing_is_lost(queue):
    assert queue.renew("w1") == []


# ---------------------------------------------------------------------- handback


def test_given_unrun_work_when_handed_back_then_the_next_worker_has_it_at_once_and_uncounted(queue):
    ids = queue.delivered(1, 1)
    assert queue.handback("w1", *[(each, 0) for each in ids]) == 2
    assert queue.pending() == dict.fromkeys(ids, ("handback", 0))
    assert queue.reclaim(solo=False) == ("-", 0, [(each, 1) for each in ids])


def test_given_what_a_dead_worker_held_when_handed_back_then_it_is_suspect(queue):
    [stream_id] = queue.delivered(1)
    assert queue.handback("w1", (stream_id, 1)) == 1
    assert queue.reclaim(solo=False) == ("-", 1, [])
    assert queue.reclaim() == ("-", 0, [(stream_id, 2)])


def test_given_an_entry_of_another_when_handed_back_then_it_stays_with_its_owner(queue):
    theirs, settled, mine = queue.delivered(1, 1, 1)
    queue.age(theirs, consumer="w2", idle_ms=0)
    queue.settle(settled)
    assert queue.handback("w1", (theirs, 0), (settled, 0), (mine, 0)) == 1
    assert queue.pending() == {theirs: ("w2", 1), mine: ("handback", 0)}


# ---------------------------------------------------------------------- leave


def consumers(queue: ScriptQueue, lane: int = 0) -> set[str]:
    return {row["name"].decode() for row in queue.redis.xinfo_consumers(queue.keys.lanes[lane], "workers")}


def test_given_a_consumer_that_holds_nothing_when_it_leaves_then_no_trace_of_it_is_left(queue, redis_client, keys):
    queue.heartbeat("w1")
    queue.admit(1, lane="bulk")
    for lane, stream_id in ((0, queue.delivered(1)[0]), (1, queue.deliver(lane=1)[0])):
        queue.settle(stream_id, lane=lane)
    assert consumers(queue, 0) == consumers(queue, 1) == {"w1"}
    assert queue.leave("w1") == 0
    assert consumers(queue, 0) == consumers(queue, 1) == set()
    assert redis_client.zscore(keys.workers, "w1") is None
    assert redis_client.exists(keys.worker("w1")) == 0


@pytest.mark.parametrize("lane", [0, 1])
def test_given_a_consumer_that_still_holds_something_when_it_leaves_then_nothing_of_it_is_lost(queue, lane):
    queue.heartbeat("w1")
    queue.admit(1, lane=("interactive", "bulk")[lane])
    [stream_id] = queue.deliver(lane=lane)
    before = queue.snapshot()
    assert queue.leave("w1") == 1
    assert queue.snapshot() == before
    assert queue.pending(lane) == {stream_id: ("w1", 1)}


def test_given_no_lane_or_no_group_when_it_leaves_then_its_presence_goes(queue, redis_client, keys):
    redis_client.delete(keys.lanes[0])
    redis_client.xgroup_destroy(keys.lanes[1], "workers")
    queue.heartbeat("w1")
    assert queue.leave("w1") == 0
    assert redis_client.exists(keys.worker("w1"), keys.lanes[0]) == 0


def test_given_others_when_one_leaves_then_they_stay(queue):
    queue.delivered(1, consumer="w1")
    queue.heartbeat("w1")
    queue.heartbeat("w2")
    assert queue.leave("w2") == 0
    assert consumers(queue) == {"w1"}
