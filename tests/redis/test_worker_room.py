"""How much a worker reads: of small batches and large ones, of live requests beside a bulk run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from clipfleet.schemas.keys import Lane
from clipfleet.schemas.request import Request
from clipfleet.worker import intake
from support.fleet import admit
from support.waiting import wait_until
from support.worker_steps import Steps, echoes, with_small_batches

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.pipeline.work import Work
    from clipfleet.schemas.keys import QueueKeys
    from support.fixtures import Leftovers

# A bulk run whose batches are small ones.
SMALL = [Request(f"bulk{number}", "small", {"data": number}) for number in range(200)]


def test_given_small_batches_then_two_for_each_call_are_held_and_of_other_requests_as_many_as_they_may(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[..., Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    # Given a worker that does not know yet what there is
    steps = stepping(16, serve=with_small_batches)
    small = [Request(f"small{number}", "small", {"data": number}) for number in range(12)]
    admit(redis_client, keys, [*small, *echoes(60, "echo")], lane=Lane.INTERACTIVE)
    # When it reads, then no more than what runs at once, and as many that are prepared
    held = []
    while len(steps.read) < 12:
        steps.step()
        held.append(steps.ledger.active)
        steps.settle(4)
    assert max(held) == 8
    # And when others come it soon holds two batches of these, as it always did
    for _ in range(4):
        if steps.ledger.active < 32:
            steps.step()
    assert steps.ledger.active == 32


def test_given_a_bulk_run_of_small_batches_then_live_requests_of_large_ones_neither_swell_it_nor_wait_for_it(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[..., Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = stepping(16, serve=with_small_batches)
    admit(redis_client, keys, SMALL, lane=Lane.BULK)
    steps.step()
    for turn in range(5):
        # When live requests come again and again, each is read at once, though bulk has taken all the room
        admit(redis_client, keys, [Request(f"live{turn}", "echo", {"data": turn})], lane=Lane.INTERACTIVE)
        for _ in range(4):
            if f"live{turn}" not in {entry.id for entry in steps.read}:
                steps.step()
        assert steps.read[-1].id == f"live{turn}"
        # And of the bulk run no more is held than its own batches are worth
        assert steps.ledger.active_in(keys.lanes[1]) <= 8
        steps.settle(3)
        steps.step()


@pytest.mark.parametrize(("size", "bulk", "live"), [(16, "small", 28), (16, "echo", 4), (1, "echo", 1)])
def test_given_no_room_beside_a_bulk_run_when_a_live_request_leaves_then_the_next_does_not_wait_for_bulk_ones(
    redis_client: redis.Redis,
    keys: QueueKeys,
    stepping: Callable[..., Steps],
    leftovers: Leftovers,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    bulk: str,
    live: int,
) -> None:
    leftovers.expected("the bulk run goes on")
    monkeypatch.setattr(intake, "RECLAIM_EVERY_S", 60.0)
    steps = stepping(size, serve=with_small_batches)
    ledger = steps.ledger
    # Given a bulk run that has all its room, and beside it as many live requests as are read there
    admit(redis_client, keys, [Request(f"b{number}", bulk, {"data": 1}) for number in range(99)], lane=Lane.BULK)
    while steps.intake._room() > 0:
        steps.step()
    admit(redis_client, keys, echoes(live, "live"))
    while steps.intake._room_beside_bulk() > 0:
        steps.step()
    assert ledger.active_in(keys.lanes[0]) == live
    # When one of these is answered while there is no room for another
    admit(redis_client, keys, echoes(1, "next"))
    reading = threading.Thread(target=steps.step)
    reading.start()
    wait_until(lambda: ledger._wanted, 10, "a wait for room")
    ledger.remove([one for one in ledger.held() if one.place[0] == keys.lanes[0]][:1])
    # Then nobody waits until a batch of the run has ended
    reading.join(10)
    waits = reading.is_alive()
    ledger.remove(ledger.held() if waits else [])
    reading.join(10)
    assert not waits
    for _ in range(4):
        if steps.read[-1].id != "next0":
            steps.step()
    assert steps.read[-1].id == "next0"


@pytest.mark.parametrize(("pipeline", "full"), [("echo", False), ("small", True)])
def test_given_requests_of_large_batches_then_a_worker_is_not_full_with_as_many_as_small_ones_hold(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[..., Steps], pipeline: str, full: bool
) -> None:
    steps = stepping(16, serve=with_small_batches)
    admit(redis_client, keys, [Request(f"one{number}", pipeline, {"data": number}) for number in range(6)])
    while len(steps.read) < 6:
        steps.step()
    busy_s, full_s = steps.ledger.times()
    steps.settle(6)
    assert busy_s > 0
    assert (full_s > 0) is full


@pytest.mark.parametrize(
    ("size", "held", "live", "bulk", "asked"),
    [
        (2, 0, 1, 0, {False}),
        (2, 0, 5, 0, {True}),
        (8, 0, 1, 40, {False, True}),
        (8, 0, 1, 3, {False}),
        (8, 0, 40, 40, {True}),
        (1, 1, 1, 0, {False}),
    ],
    ids=[
        "room for all",
        "more live ones",
        "a live one and a bulk run",
        "a bulk run of a few",
        "both have their share",
        "one more place",
    ],
)
def test_given_a_read_then_more_is_only_taken_to_wait_in_the_lanes_that_filled_their_share(
    redis_client: redis.Redis,
    keys: QueueKeys,
    stepping: Callable[[int], Steps],
    leftovers: Leftovers,
    size: int,
    held: int,
    live: int,
    bulk: int,
    asked: set[bool],
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = stepping(size)
    admit(redis_client, keys, echoes(held, "held"))
    if held:
        steps.step()
    said: dict[str, set[bool]] = {lane: set() for lane in keys.lanes}

    def hopeless(works: list[Work], *, contended: bool) -> list[Work]:
        for work in works:
            said[work.entry.lane].add(contended)
        return []

    steps.intake._engine.forecast.hopeless = hopeless  # type: ignore[assignment, method-assign]

    def send() -> None:
        if held:  # the other comes when there is nothing, and the worker waits for it
            wait_until(lambda: redis_client.info("clients")["blocked_clients"], 10, "a blocked reader")
        admit(redis_client, keys, echoes(live, "live"))

    admit(redis_client, keys, echoes(bulk, "bulk"), lane=Lane.BULK)
    sending = threading.Thread(target=send)
    sending.start()
    if not held:
        sending.join()
    while len(steps.read) < held + 1:
        steps.step()
    sending.join()
    assert said[keys.lanes[0]] | said[keys.lanes[1]] == asked
    if live < bulk:
        assert said[keys.lanes[0]] == {False}


def test_given_a_bulk_run_that_takes_all_the_room_then_a_few_live_requests_are_held_beside_it_and_no_more(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[..., Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = stepping(16)
    admit(redis_client, keys, echoes(100, "bulk"), lane=Lane.BULK)
    while steps.ledger.active < 32:
        steps.step()
    admit(redis_client, keys, echoes(20, "live"), lane=Lane.INTERACTIVE)
    for _ in range(8):
        if steps.ledger.active == 32:
            steps.step()
    # An eighth of what is held of live requests at a time
    assert [steps.ledger.active_in(lane) for lane in keys.lanes] == [4, 32]


def test_given_live_requests_alone_then_what_is_kept_for_them_beside_bulk_is_not_theirs(
    redis_client: redis.Redis,
    keys: QueueKeys,
    stepping: Callable[..., Steps],
    leftovers: Leftovers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leftovers.expected("the backlog is not run to its end")
    monkeypatch.setattr("clipfleet.worker.intake.RECLAIM_EVERY_S", 0.01)  # a full worker waits for room as long
    steps = stepping(16)
    admit(redis_client, keys, echoes(60, "live"), lane=Lane.INTERACTIVE)
    while steps.ledger.active < 32:
        steps.step()
    for _ in range(3):
        steps.step()
    assert steps.ledger.active == 32


def test_given_a_live_request_of_large_batches_when_a_bulk_run_of_small_ones_begins_then_it_does_not_swell_it(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[..., Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = stepping(16, serve=with_small_batches)
    admit(redis_client, keys, echoes(1, "live"))
    steps.step()
    assert steps.ledger.active == 1
    admit(redis_client, keys, SMALL, lane=Lane.BULK)
    for _ in range(3):
        steps.step()
        assert steps.ledger.active_in(keys.lanes[1]) <= 8
    assert steps.ledger.active_in(keys.lanes[1]) > 0
