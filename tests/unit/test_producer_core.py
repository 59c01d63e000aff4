"""The client without its sockets: commands out, answers in, a clock of the test's own."""

from __future__ import annotations

import hiredis
import pytest

from clipfleet.producer.core.core import LATE_PATIENCE_S, PATIENCE_S
from clipfleet.producer.core.pending import Stage
from clipfleet.producer.core.trouble import Remedy, broken_by, remedy_for
from clipfleet.schemas.errors import Cancelled, Expired, Unavailable
from clipfleet.schemas.result import encode_success
from support.core_harness import KEYS, Harness


def test_an_accepted_request_expires_by_the_clients_clock():
    harness = Harness()
    request = harness.submit(timeout=5)
    other = harness.submit("b", timeout=50)
    harness.admit(b"1-1", b"1-2")
    assert harness.core.due(harness.now) == harness.now + 5
    harness.now += 5
    harness.core.tick(harness.now)
    assert isinstance(request.ending.error, Expired)
    assert harness.core.due(harness.now) == other.deadline


def test_what_was_never_sent_fails_soon_when_redis_is_away_and_what_was_waits():
    harness = Harness(wait_for_worker=False)
    harness.submit("worker-check")
    for command in harness.commands():
        harness.reply(command, [b"1", b"0"] if command.args[0] == "TIME" else [b"w", b"1000"])
    (call,) = harness.commands()
    unsent = harness.submit("unsent")
    call.lost(harness.now)
    harness.core.away("connection refused", harness.now)
    harness.now += PATIENCE_S
    harness.core.tick(harness.now)
    assert isinstance(unsent.ending.error, Unavailable)
    assert list(harness.core.unanswered) == ["worker-check"]
    late = harness.submit("late")
    harness.core.tick(harness.now)
    assert late.stage is Stage.WAITING
    harness.now += LATE_PATIENCE_S
    harness.core.tick(harness.now)
    assert "connection refused" in str(late.ending.error)
    harness.now += 100
    harness.core.tick(harness.now)
    assert not harness.core.unanswered


def test_where_nobody_listens_a_request_fails_within_a_second_and_elsewhere_later():
    harness = Harness(wait_for_worker=False)
    first = harness.submit("first")
    harness.core.away("no answer", harness.now)
    harness.now += LATE_PATIENCE_S
    harness.core.tick(harness.now)
    assert first.stage is Stage.WAITING
    harness.core.away("connection refused", harness.now, nobody=True)
    assert "connection refused" in str(first.ending.error)
    second = harness.submit("second")
    harness.core.tick(harness.now)
    assert second.stage is Stage.WAITING
    patient = Harness(wait_for_worker=True)
    waits = patient.submit("waits")
    patient.core.away("connection refused", patient.now, nobody=True)
    patient.now += PATIENCE_S
    patient.core.tick(patient.now)
    assert waits.stage is Stage.WAITING


def test_where_no_worker_lives_nothing_stays_to_be_sent():
    harness = Harness(wait_for_worker=False)
    request = harness.submit("a")
    for command in harness.commands():
        harness.reply(command, [b"1", b"0"] if command.args[0] == "TIME" else [])
    assert isinstance(request.ending.error, Unavailable)
    assert not harness.core.wants_commands


def test_a_worker_is_asked_for_once_and_then_known_by_its_results():
    harness = Harness(wait_for_worker=False)
    harness.submit("a")
    time_, newest = harness.commands()
    assert (time_.args, newest.args) == (("TIME",), ("ZREVRANGE", KEYS.workers, 0, 0, "WITHSCORES"))
    assert harness.commands() == []  # the question is on its way
    harness.reply(time_, [b"100", b"500000"])
    harness.reply(newest, [b"w", b"99000"])
    harness.admit(b"1-1")
    harness.now += 4
    harness.results(encode_success("a", {}))
    harness.now += 4
    harness.submit("b")
    assert harness.admit(b"1-2").args[0] == "EVALSHA"
    harness.now += 60
    harness.submit("c")
    assert [command.args[0] for command in harness.commands()] == ["TIME", "ZREVRANGE"]


@pytest.mark.parametrize(
    ("newest", "alive"),
    [([], False), ([b"w", b"89000"], False), ([b"w", b"91000"], True), (hiredis.ReplyError("NOPERM"), True)],
)
def test_who_counts_as_a_living_worker(newest, alive):
    harness = Harness(wait_for_worker=False)
    request = harness.submit("a")
    time_, question = harness.commands()
    harness.reply(time_, [b"100", b"0"])
    harness.reply(question, newest)
    assert (request.ending is None) == alive
    assert alive or str(request.ending.error) == "unavailable: no worker on queue 'q'"


def test_a_cancel_before_the_call_needs_no_redis_and_one_after_it_tells_the_workers():
    harness = Harness()
    waiting = harness.submit("waiting")
    harness.core.cancel(waiting)
    assert isinstance(waiting.ending.error, Cancelled)
    assert harness.commands() == []
    sent = harness.submit("sent", timeout=30)
    harness.admit(b"1-1")
    harness.core.cancel(sent)
    (command,) = harness.commands()
    assert command.args == ("SET", KEYS.cancel("sent"), "1", "PX", 30_000)
    command.lost(harness.now)
    assert [again.args for again in harness.commands()] == [command.args]
    harness.core.cancel(sent)
    assert harness.commands() == []


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("NOSCRIPT No matching script", Remedy.LOAD_SCRIPT),
        ("OOM command not allowed", Remedy.FULL),
        ("@user_script: 50: -READONLY You can't write against a read only replica.", Remedy.RECONNECT),
        ("READONLY You can't write against a read only replica.", Remedy.RECONNECT),
        ("LOADING Redis is loading the dataset in memory", Remedy.RECONNECT),
        ("UNBLOCKED force unblock from blocking operation", Remedy.LATER),
        ("MOVED 866 127.0.0.1:7001", Remedy.MOVED),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Remedy.GIVE_UP),
        ("", Remedy.GIVE_UP),
    ],
)
def test_the_remedy_for_an_error(text, remedy):
    assert remedy_for(hiredis.ReplyError(text)) is remedy


def test_moved_says_where_to():
    assert broken_by(hiredis.ReplyError("MOVED 866 10.0.0.7:7001")).moved_to == "10.0.0.7:7001"
    assert broken_by(hiredis.ReplyError("READONLY no")).moved_to == ""


def test_an_outage_leaves_nothing_of_the_requests_that_it_ended():
    harness = Harness(wait_for_worker=False)
    harness.core.away("connection refused", harness.now)
    for number in range(100):
        harness.submit(str(number), timeout=1 if number % 2 else 100)
    assert harness.core.wants_commands
    harness.now += 2
    harness.core.tick(harness.now)
    assert len(harness.core.unanswered) == 50
    harness.now += PATIENCE_S
    harness.core.tick(harness.now)
    assert len(harness.core.take_finished()) == 100
    assert not harness.core.wants_commands
