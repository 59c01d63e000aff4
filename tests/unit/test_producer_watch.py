"""Results on keys of their own, by the client without its sockets."""

from __future__ import annotations

import pytest

from clipfleet.producer.core.watch import GRACE_S
from clipfleet.schemas.errors import ErrorCode, Expired, QueueFull
from clipfleet.schemas.result import encode_success
from support.core_harness import KEYS, Harness


def test_a_key_is_looked_up_ever_less_often_while_somebody_waits():
    harness = Harness()
    request = harness.submit("k", inbox=False)
    harness.admit(b"1-1")
    assert not harness.core.unanswered
    harness.core.look_for(request, harness.now)
    pauses = []
    for _ in range(12):
        (look,) = harness.commands()
        assert look.args == ("LRANGE", KEYS.result("k"), 0, 0)
        harness.reply(look, [])
        pauses.append(harness.core.due(harness.now) - harness.now)
        harness.now += pauses[-1]
    assert pauses == sorted(pauses)
    assert (round(pauses[0], 3), pauses[-1]) == (0.01, 0.25)
    (look,) = harness.commands()
    harness.reply(look, [encode_success("k", {"data": 1})])
    assert request.ending.outputs == {"data": 1}
    assert harness.commands() == []
    assert not harness.core.wants_commands


def accepted(harness, *, timeout=60.0):
    request = harness.submit("k", timeout=timeout, inbox=False)
    harness.admit(b"1-1")
    return request


@pytest.mark.parametrize("asked_after", [0.0, 30.0, 100.0])
def test_a_request_with_a_key_expires_a_moment_after_its_deadline_or_after_the_first_look(asked_after):
    harness = Harness()
    request = accepted(harness)
    end = max(harness.now + 60, harness.now + asked_after) + GRACE_S
    harness.now += asked_after
    harness.core.look_for(request, harness.now)
    while request.ending is None:
        for look in harness.commands():
            harness.reply(look, [])
        due = harness.core.due(harness.now)
        assert due > harness.now
        harness.now = due
        harness.core.tick(harness.now)
    assert harness.now == pytest.approx(end)
    assert isinstance(request.ending.error, Expired)
    assert harness.core.take_finished() == [request]
    assert not harness.core.wants_commands


def test_a_result_that_was_there_for_long_is_given_after_the_deadline_too():
    harness = Harness()
    request = accepted(harness)
    harness.now += 100
    harness.core.look_for(request, harness.now)
    harness.core.tick(harness.now)
    (look,) = harness.commands()
    harness.reply(look, [encode_success("k", {"data": 1})])
    assert request.ending.ok


def test_whether_a_request_that_is_known_by_its_id_was_ever_sent_is_not_claimed():
    harness = Harness()
    request = harness.pending("k", timeout=1.0, inbox=False)
    request.known_by_id()
    harness.core.look_for(request, harness.now)
    harness.now += 1_000
    harness.core.tick(harness.now)
    assert request.ending is None
    assert harness.core.wants_commands


def test_nobody_looks_for_what_was_refused():
    harness = Harness()
    request = harness.submit("k", inbox=False)
    harness.core.look_for(request, harness.now)
    admit, look = harness.commands()
    harness.reply(admit, [0, 1000, 5, [b"queue_full"]])
    harness.reply(look, [])
    assert isinstance(request.ending.error, QueueFull)
    assert not harness.core.wants_commands


def test_one_who_gives_up_does_not_take_the_look_from_another():
    harness = Harness()
    request = accepted(harness)
    for _ in range(2):
        harness.core.look_for(request, harness.now)
    harness.core.look_no_more(request)
    (look,) = harness.commands()
    harness.reply(look, [encode_success("k", {"data": 1})])
    assert request.ending.ok
    harness.core.look_no_more(request)
    assert not harness.core.wants_commands


def test_what_ends_all_requests_ends_those_with_keys_too():
    harness = Harness()
    request = accepted(harness)
    harness.core.look_for(request, harness.now)
    harness.core.away("WRONGPASS", harness.now, refused=True)
    assert request.ending.error.code is ErrorCode.UNAVAILABLE
    assert not harness.core.wants_commands
