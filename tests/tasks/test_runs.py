"""Turns and leases of a run's shards, against a real Redis."""

from __future__ import annotations

import pytest

from clipfleet.tasks.keys import RunKeys
from clipfleet.tasks.runs import LEASE_MS, Lost, Runs
from clipfleet.tasks.state import FINISHED, REVOKED
from support.waiting import wait_until

PLAN = {"shards": 2, "collection": "images"}


@pytest.fixture
def runs(redis_client, keys):
    return Runs(redis_client, keys)


@pytest.fixture
def run(runs):
    return runs.begin("asked", PLAN, "task")[0]


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setattr("clipfleet.tasks.runs.LEASE_MS", 30)


def test_given_a_run_under_way_when_asked_for_again_then_it_has_one_more_watcher(runs, run):
    name, known, is_new = runs.begin("asked", PLAN, "other")
    assert (name, known.tasks, is_new) == (run, ["task", "other"], False)
    assert runs.begin("asked", PLAN, "other")[1].tasks == ["task", "other"]
    assert runs.begin("asked for otherwise", PLAN, "other")[0] != run
    assert len(runs.unfinished()) == 2
    assert runs.end(runs.begin("asked for otherwise", PLAN, "other")[0], REVOKED)
    assert runs.unfinished() == [run]


def test_given_a_finished_run_when_asked_for_then_only_a_new_task_begins_it_anew(runs, run):
    shard, _ = runs.claim(run, 0, 0, "me")
    shard.indexed = 7
    runs.save(run, 0, shard, [b"12345678"])
    assert runs.end(run, FINISHED)
    assert not runs.end(run, REVOKED)
    assert runs.unfinished() == []
    name, known, is_new = runs.begin("asked", PLAN, "task")
    assert (name, known.state, is_new, runs.shards(name, 2)[0].indexed) == (run, FINISHED, False, 7)
    name, known, is_new = runs.begin("asked", PLAN, "another")
    assert (known.tasks, is_new, runs.shards(name, 2)[0].indexed, runs.done(name, 0)) == (["another"], True, 0, set())


def test_given_a_run_that_was_begun_anew_when_the_first_tasks_message_comes_again_then_it_gets_what_it_got(runs, run):
    assert runs.begin("asked", PLAN, "twin")[0] == run
    runs.end(run, FINISHED)
    newer = runs.begin("asked", PLAN, "another")[0]
    for task, its in (("task", run), ("twin", run), ("another", newer), ("task", run)):
        name, known, is_new = runs.begin("asked", PLAN, task)
        assert (name, task in known.tasks, is_new) == (its, True, False)
        assert runs.find("asked", task) == (its, known)
    runs.end(newer, FINISHED)
    assert runs.find("asked", "a third") is None


def test_given_what_is_left_of_the_run_before_when_begun_anew_then_it_changes_nothing_of_it(runs, run):
    shard, _ = runs.claim(run, 0, 0, "slow")
    runs.end(run, FINISHED)
    name, _, _ = runs.begin("asked", PLAN, "another")
    runs.save(run, 0, shard, [b"12345678"])
    runs.release(run, 0, "slow", turn=5, ended="done")
    assert not runs.end(run, FINISHED, {"switched": True})
    assert runs.get(name).state == "running"
    assert (runs.shards(name, 2)[0].turn, runs.shards(name, 2)[0].ended, runs.done(name, 0)) == (0, "", set())


def test_given_a_run_that_two_would_close_when_asked_then_one_may_and_the_other_waits(
    runs, run, short_lease, monkeypatch
):
    assert runs.close(run, "me")[0].state == "running"
    assert runs.close(run, "me")[0].state == "running"
    nobody, wait_ms = runs.close(run, "twin")
    assert nobody is None
    assert 0 < wait_ms <= 30
    wait_until(lambda: runs.close(run, "twin")[0], 5, "the lease of the one who was killed")
    monkeypatch.setattr("clipfleet.tasks.runs.LEASE_MS", 60_000)
    assert runs.close(run, "twin")[0]
    runs.leave(run, "me")
    assert runs.close(run, "me")[0] is None
    runs.leave(run, "twin")
    assert runs.close(run, "me")[0].state == "running"
    runs.end(run, FINISHED)
    assert runs.close(run, "third")[0].state == FINISHED
    assert runs.close("unknown", "me") == (None, 0)


def test_given_a_run_of_weeks_when_its_shards_move_then_nothing_of_it_ends(runs, run, redis_client, keys):
    kept = [RunKeys(keys).run(run), RunKeys(keys).asked("asked")]
    runs.claim(run, 0, 0, "me")
    for key in kept:
        redis_client.expire(key, 100)
    assert runs.renew(run, 0, "me")
    assert all(redis_client.ttl(key) > 100 for key in kept)


def test_given_a_step_that_runs_when_its_message_comes_again_then_it_waits_and_then_is_dropped(runs, run):
    runs.claim(run, 0, 0, "me")
    nobody, wait_ms = runs.claim(run, 0, 0, "twin")
    assert nobody is None
    assert 0 < wait_ms <= LEASE_MS
    runs.release(run, 0, "me", turn=1)
    assert runs.claim(run, 0, 0, "twin") == (None, 0)
    assert runs.claim(run, 0, 1, "next")[0].turn == 1


def test_given_the_next_steps_message_before_this_one_let_go_when_claimed_then_it_need_not_wait(runs, run):
    runs.claim(run, 0, 0, "me")
    assert runs.claim(run, 0, 1, "next")[0].owner == "next"
    runs.release(run, 0, "me", turn=1)
    assert runs.shards(run, 2)[0].owner == "next"


@pytest.mark.usefixtures("short_lease")
def test_given_a_killed_owner_when_its_lease_ends_then_the_same_turn_goes_on_and_the_dead_one_writes_no_more(runs, run):
    stale, _ = runs.claim(run, 0, 0, "killed")
    stale.indexed = 1
    runs.save(run, 0, stale, [b"aaaaaaaa"])
    taken = wait_until(lambda: runs.claim(run, 0, 0, "next")[0], 5, "the lease to end")
    assert (taken.owner, taken.indexed, runs.done(run, 0)) == ("next", 1, {b"aaaaaaaa"})
    stale.indexed = 2
    with pytest.raises(Lost):
        runs.save(run, 0, stale, [b"bbbbbbbb"])
    assert not runs.renew(run, 0, "killed")
    assert (runs.shards(run, 2)[0].indexed, runs.done(run, 0)) == (1, {b"aaaaaaaa"})


def test_given_a_renewed_lease_when_the_run_is_revoked_then_its_keeper_hears_it(runs, run):
    runs.claim(run, 0, 0, "me")
    assert runs.renew(run, 0, "me")
    runs.end(run, REVOKED)
    assert not runs.renew(run, 0, "me")


def test_given_shards_that_go_on_when_asked_again_then_only_quiet_ones_are_and_each_once(runs, run):
    assert runs.ask_again(run, 0, 60_000) is None
    runs.claim(run, 0, 3, "killed just now")
    turn, wait_ms = runs.ask_again(run, 0, -LEASE_MS)
    assert turn == 3
    assert 0 < wait_ms <= LEASE_MS
    runs.release(run, 0, "killed just now", turn=4, ended="done")
    assert runs.ask_again(run, 0, -LEASE_MS) is None


def test_given_a_finished_unit_when_saved_then_its_log_of_items_is_gone(runs, run, redis_client):
    shard, _ = runs.claim(run, 1, 0, "me")
    runs.save(run, 1, shard, [b"aaaaaaaa", b"bbbbbbbb"])
    assert runs.done(run, 1) == {b"aaaaaaaa", b"bbbbbbbb"}
    shard.unit = 1
    runs.save(run, 1, shard, next_unit=True)
    assert (runs.done(run, 1), runs.shards(run, 2)[1].unit) == (set(), 1)


def test_given_no_such_run_when_anything_is_asked_then_nothing_is_done(runs):
    assert runs.get("x") is None
    assert runs.claim("x", 0, 0, "me") == (None, 0)
    assert not runs.end("x", FINISHED)
    assert not runs.is_running("x")
