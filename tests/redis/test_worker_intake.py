"""What the intake reads next while a worker is never idle, step by step against a real Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clipfleet.schemas.keys import Lane
from clipfleet.schemas.limits import GROUP
from clipfleet.schemas.request import decode_request
from clipfleet.worker.intake import BULK_SHARE
from support.fleet import admit
from support.worker_steps import LEASE_MS, Steps, echoes

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fixtures import Leftovers


@pytest.mark.parametrize("lane", list(Lane))
def test_given_a_backlog_when_another_worker_hands_back_then_that_is_not_run_behind_all_of_it(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[[int], Steps], leftovers: Leftovers, lane: Lane
) -> None:
    leftovers.expected("the backlog is not run to its end")
    # Given a worker whose room is always taken, since there is more than it can do
    steps = stepping(2)
    admit(redis_client, keys, echoes(60, "backlog"), lane=Lane.BULK)
    steps.step()
    assert steps.ledger.active == 4
    # And one that stops, and hands back what it had not run
    other = steps.connect("other")
    admit(redis_client, keys, echoes(1, "returned"), lane=lane)
    returned = other.read({keys.lane(lane): 100})[-1]
    assert other.hand_back(returned.lane, [(returned.stream_id, 0)], idle_ms=LEASE_MS) == 1
    admit(redis_client, keys, echoes(60, "more"), lane=Lane.BULK)
    # When it is time for a look while all room is taken, and then a batch ends
    steps.intake._reclaim_at = 0.0
    steps.step()
    steps.settle(2)
    for _ in range(2):
        steps.step()
    # Then what was handed back is among what is read next
    assert returned.place in {entry.place for entry in steps.read}
    assert steps.ledger.active <= 4


def test_given_live_requests_without_end_when_one_place_is_free_at_a_time_then_bulk_has_its_share(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[[int], Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = stepping(1)
    admit(redis_client, keys, echoes(60, "live"), lane=Lane.INTERACTIVE)
    admit(redis_client, keys, echoes(60, "bulk"), lane=Lane.BULK)
    steps.step()
    while len(steps.read) < 5 * BULK_SHARE:
        steps.settle(1)
        steps.step()
        assert steps.ledger.active <= 2
    bulk = sum(entry.lane == keys.lanes[1] for entry in steps.read)
    assert 4 <= bulk <= 6


def test_given_a_suspect_when_another_worker_has_done_with_it_then_a_busy_one_reads_on(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[[int], Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    # Given a worker at something long, and a request that was run once by one that died
    steps = stepping(2)
    dead = steps.connect("dead")
    dead.ensure_groups()
    admit(redis_client, keys, echoes(1, "suspect"))
    (suspect,) = dead.read({keys.lanes[0]: 1})
    admit(redis_client, keys, echoes(1, "long"))
    steps.step()
    redis_client.execute_command("XCLAIM", suspect.lane, GROUP, "dead", 0, suspect.stream_id, "IDLE", LEASE_MS)
    admit(redis_client, keys, echoes(1, "new"))
    steps.intake._reclaim_at = 0.0
    steps.step()
    assert len(steps.read) == 1  # it reads nothing new, as long as the other waits for its turn
    # When another worker has run that
    redis_client.xack(suspect.lane, GROUP, suspect.stream_id)
    redis_client.xdel(suspect.lane, suspect.stream_id)
    for _ in range(2):
        steps.step()
    # Then this one reads on, though it is not done with what it has
    assert (len(steps.read), steps.ledger.active) == (2, 2)


def test_given_a_key_that_cannot_be_written_when_a_request_was_run_then_its_dead_letter_holds_it(
    redis_client: redis.Redis, keys: QueueKeys, stepping: Callable[[int], Steps]
) -> None:
    steps = stepping(2)
    (request,) = echoes(1, "unanswered")
    redis_client.set(keys.result(request.id), "somebody's own", px=60_000)
    admit(redis_client, keys, [request])
    steps.step()
    steps.settle(1)
    ((_, letter),) = redis_client.xrange(keys.dead)
    assert decode_request(letter[b"request"], keys)[0] == request
