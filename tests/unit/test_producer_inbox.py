"""The inbox by the client without its sockets: read, cut off, read again."""

from __future__ import annotations

import hiredis

from clipfleet.schemas.errors import ErrorCode, Unavailable, error_for
from clipfleet.schemas.result import encode_failure, encode_success
from support.core_harness import KEYS, Harness


def test_a_result_may_come_before_the_answer_to_its_admission():
    harness = Harness()
    request = harness.submit()
    (command,) = harness.commands()
    harness.results(encode_success("a", {"data": 1}))
    assert request.ending.outputs == {"data": 1}
    harness.reply(command, [1, 0, 0, [b"1-1"]])
    assert harness.told == [request]
    assert request.payload == b""


def test_results_are_cut_off_only_after_they_came_and_second_copies_are_dropped():
    harness = Harness()
    first, second = harness.submit("a"), harness.submit("b")
    harness.admit(b"1-1", b"1-2")
    harness.results(encode_success("a", {"n": 1}), encode_success("stranger", {}), b"rubbish")
    assert first.ending.ok
    turn = harness.core.inbox_commands(harness.now)
    assert turn[0].args == ("LTRIM", KEYS.inbox("default.me"), 3, -1)
    for command in turn:
        command.lost(harness.now)  # the connection broke before the cut
    assert len(harness.results(encode_success("a", {"n": 2}), encode_failure("b", error_for("corrupt_image")))) == 2
    assert first.ending.outputs == {"n": 1}
    assert second.ending.error.code is ErrorCode.CORRUPT_IMAGE
    assert harness.told == [first, second]


def test_what_was_cut_off_is_cut_off_once():
    harness = Harness()
    harness.submit("a")
    harness.submit("b")
    harness.admit(b"1-1", b"1-2")
    harness.results(encode_success("a", {}))
    assert [args[0] for args in harness.results()] == ["LTRIM", "BLMOVE", "LRANGE"]
    assert [args[0] for args in harness.results()] == ["BLMOVE", "LRANGE"]


def test_nothing_is_cut_off_on_another_connection_than_it_was_read_on():
    harness = Harness()
    harness.submit("a")
    harness.submit("b")
    harness.admit(b"1-1", b"1-2")
    harness.results(encode_success("a", {}))
    harness.core.inbox_ended()
    assert [args[0] for args in harness.results()] == ["BLMOVE", "LRANGE"]


def test_nobody_blocks_on_the_inbox_when_nothing_is_outstanding():
    harness = Harness()
    assert not harness.core.wants_inbox
    harness.submit("k", inbox=False)
    assert not harness.core.wants_inbox
    harness.submit("a")
    assert harness.core.wants_inbox
    harness.admit(b"1-1", b"1-2")
    harness.results(encode_success("a", {}))
    assert not harness.core.wants_inbox
    assert [command.args[0] for command in harness.core.inbox_commands(harness.now)] == ["LTRIM"]


def test_at_maxmemory_results_come_without_the_block_at_a_modest_pace():
    harness = Harness()
    request = harness.submit()
    harness.admit(b"1-1")
    look, read = harness.core.inbox_commands(harness.now)
    harness.reply(look, hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'."))
    harness.reply(read, [])
    assert harness.core.inbox_commands(harness.now) == []
    harness.now = harness.core.due(harness.now)
    look, read = harness.core.inbox_commands(harness.now)
    harness.reply(look, hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'."))
    harness.reply(read, [encode_success("a", {})])
    assert request.ending.ok


def test_an_inbox_that_may_not_be_read_fails_its_requests():
    harness = Harness()
    request = harness.submit()
    harness.admit(b"1-1")
    look, read = harness.core.inbox_commands(harness.now)
    harness.reply(look, hiredis.ReplyError("NOPERM this user has no permissions to run the 'blmove' command"))
    assert isinstance(request.ending.error, Unavailable)
    harness.reply(read, [])
