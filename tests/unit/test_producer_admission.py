"""Admission by the client without its sockets: which calls go out, and what their answers do."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.producer.core import admission
from clipfleet.producer.core.pending import Stage
from clipfleet.producer.core.trouble import LinkBroken
from clipfleet.schemas.errors import ErrorCode, QueueFull, Unavailable
from clipfleet.schemas.keys import Lane
from clipfleet.schemas.result import encode_success
from support.core_harness import KEYS, Harness


def test_what_was_submitted_together_goes_out_in_one_call_by_lane():
    harness = Harness()
    for number in range(5):
        harness.submit(f"i{number}")
        harness.submit(f"b{number}", lane=Lane.BULK)
    first, second = harness.commands()
    assert first.args[7:10:2] == (KEYS.call("default.me", 1), "i0")
    assert (first.args[8], second.args[8]) == ("interactive", "bulk")
    assert [a for a in first.args if str(a).startswith("i") and len(str(a)) == 2] == ["i0", "i1", "i2", "i3", "i4"]
    assert harness.commands() == []


@given(sizes=st.lists(st.integers(1, 3_000_000), min_size=1, max_size=600))
def test_calls_keep_the_order_and_the_limits(sizes):
    harness = Harness()
    for number, size in enumerate(sizes):
        harness.submit(str(number), size=size)
    sent = []
    while harness.core.unanswered:
        for command in harness.commands():
            if command.args[0] == "HMGET":
                harness.reply(command, [b"99999999"])
                continue
            ids = command.args[9::3]
            assert len(ids) <= admission.MAX_CALL_REQUESTS
            payload = sum(map(len, command.args[11::3]))
            assert payload <= admission.MAX_CALL_BYTES or len(ids) == 1
            sent += ids
            harness.reply(command, [len(ids), 0, 0, [b"1-1"] * len(ids)])
        for request_id in sent:
            if request_id in harness.core.unanswered:
                harness.results(encode_success(request_id, {}))
    assert sent == [str(number) for number in range(len(sizes))]


@pytest.mark.parametrize(
    ("answer", "most"),
    [
        ([b"3000000", None], 3_000_000),
        ([None, None], 8 << 20),
        ([b"nonsense", b""], 8 << 20),
        ([b"9000000", b"3000000"], 3_000_000),
        ([None, b"3000000"], 3_000_000),
        (hiredis.ReplyError("NOPERM"), 60 << 20),
    ],
)
def test_a_large_request_goes_out_only_when_the_queue_is_known_to_take_it(answer, most):
    harness = Harness()
    fits, above = harness.submit("fits", size=most), harness.submit("above", size=(most + 1))
    (question,) = harness.commands()
    assert question.args == ("HMGET", KEYS.fleet, "max_request_bytes", "max_queue_bytes")
    assert harness.commands() == []
    question.lost(harness.now)
    (question,) = harness.commands()
    harness.reply(question, answer)
    calls = harness.commands()
    assert fits.stage is Stage.CALLING
    if isinstance(answer, Exception):  # then admission's own word counts
        assert above.stage is Stage.WAITING
    else:
        assert above.ending.error.code is ErrorCode.TOO_LARGE
        assert f"takes at most {most}" in str(above.ending.error)
    assert calls
    assert all(command.args[0] == "EVALSHA" for command in calls)


def test_the_limit_is_asked_for_again_after_a_while_and_by_large_requests_alone():
    harness = Harness()
    harness.submit("a", size=2 << 20)
    (question,) = harness.commands()
    harness.reply(question, [None, None])
    harness.admit(b"1-1")
    harness.submit("b", size=2 << 20)
    harness.admit(b"1-2")
    harness.now += 5
    harness.submit("c")
    harness.admit(b"1-3")
    harness.submit("d", size=2 << 20)
    (question,) = harness.commands()
    assert question.args[0] == "HMGET"


def test_a_handful_waits_for_the_answer_under_way_and_a_crowd_does_not():
    harness = Harness()
    harness.submit("a")
    assert len(harness.commands()) == 1
    harness.submit("b")
    assert harness.commands() == []
    for number in range(admission.WORTH_A_CALL):
        harness.submit(str(number))
    assert len(harness.commands()) == 1


def test_a_call_whose_answer_is_lost_goes_out_again_under_its_key_with_the_time_that_is_left():
    harness = Harness()
    request = harness.submit(timeout=10)
    (first,) = harness.commands()
    first.lost(harness.now)
    harness.now += 4
    (second,) = harness.commands()
    assert second.args[:10] == first.args[:10]
    assert (first.args[10], second.args[10]) == (10_000, 6_000)
    harness.reply(second, [1, 0, 0, [b"1-1"]])
    assert request.stage is Stage.ACCEPTED


def test_a_request_that_ended_keeps_its_place_in_a_call_that_goes_out_again():
    harness = Harness()
    short, long = harness.submit("short", timeout=0.5), harness.submit("long", timeout=10)
    (first,) = harness.commands()
    first.lost(harness.now)
    harness.now += 1
    harness.core.tick(harness.now)
    assert short.stage is Stage.DONE
    (second,) = harness.commands()
    assert second.args[9:] == ("short", 1, b"x" * 10, "long", 9_000, b"x" * 10)
    harness.reply(second, [2, 0, 0, [b"1-1", b"1-2"]])
    assert long.stage is Stage.ACCEPTED
    assert short.payload == long.payload == b""


def test_a_call_is_not_sent_again_when_the_memory_of_its_key_may_be_gone():
    harness = Harness()
    request = harness.submit(timeout=300)
    (first,) = harness.commands()
    first.lost(harness.now)
    harness.now += admission.RESEND_FOR_S + 1
    assert harness.commands() == []
    assert harness.core.unanswered == {"a": request}
    harness.results(encode_success("a", {}))
    assert request.ending.ok


def test_an_unknown_script_is_sent_whole():
    harness = Harness()
    harness.submit()
    (first,) = harness.commands()
    harness.reply(first, hiredis.ReplyError("NOSCRIPT No matching script."))
    (second,) = harness.commands()
    assert (first.args[0], second.args[0]) == ("EVALSHA", "EVAL")
    assert second.args[2:] == first.args[2:]


def test_each_answer_of_a_partial_admission_goes_to_its_own_request():
    harness = Harness()
    requests = [harness.submit(name) for name in "abcd"]
    harness.admit(b"1-1", b"too_large", b"queue_full", b"queue_full", retry_after_ms=250)
    assert requests[0].stage is Stage.ACCEPTED
    assert requests[1].ending.error.code is ErrorCode.TOO_LARGE
    assert isinstance(requests[2].ending.error, QueueFull)
    assert requests[3].ending.error.retry_after == 0.25
    assert harness.told == requests[1:]


@pytest.mark.parametrize(
    ("text", "family"), [("OOM command not allowed", QueueFull), ("NOPERM this user has no permissions", Unavailable)]
)
def test_an_error_for_the_whole_call_ends_its_requests(text, family):
    harness = Harness()
    request = harness.submit()
    harness.reply(harness.commands()[0], hiredis.ReplyError(text))
    assert isinstance(request.ending.error, family)


def test_a_server_that_takes_no_writes_breaks_the_connection_and_keeps_the_call():
    harness = Harness()
    harness.submit()
    (first,) = harness.commands()
    with pytest.raises(LinkBroken) as broken:
        first.reply(hiredis.ReplyError("READONLY You can't write against a read only replica."), harness.now)
    assert broken.value.by_answer
    first.lost(harness.now)
    assert harness.commands()[0].args == first.args


def test_a_moving_slot_is_asked_again_in_a_moment():
    harness = Harness()
    harness.submit()
    (first,) = harness.commands()
    harness.reply(first, hiredis.ReplyError("TRYAGAIN Multiple keys request during rehashing of slot"))
    assert harness.commands() == []
    assert harness.core.due(harness.now) == pytest.approx(harness.now + admission.LATER_S)
    harness.now += admission.LATER_S
    assert harness.commands()[0].args[7] == first.args[7]


def test_durability_counts_what_a_replica_has_and_asks_again_otherwise():
    harness = Harness(replicated=True)
    request = harness.submit()
    admit, touch, wait = harness.commands()
    assert (touch.args[0], wait.args) == ("PEXPIRE", ("WAIT", 1, admission.REPLICA_WAIT_MS))
    harness.reply(admit, [1, 0, 0, [b"1-1"]])
    harness.reply(touch, 1)
    harness.reply(wait, 0)
    assert request.stage is Stage.CALLING
    harness.now += admission.LATER_S
    again, touch, wait = harness.commands()
    assert again.args[7] == admit.args[7]
    harness.reply(again, [1, 0, 0, [b"1-1"]])
    harness.reply(touch, 1)
    harness.reply(wait, 1)
    assert request.stage is Stage.ACCEPTED


def test_durability_loses_no_call_with_the_connection():
    harness = Harness(replicated=True)
    harness.submit()
    admit, touch, wait = harness.commands()
    for command in (admit, touch, wait):
        command.lost(harness.now)
    commands = harness.commands()
    assert len(commands) == 3
    harness.reply(commands[0], [1, 0, 0, [b"1-1"]])
    commands[1].lost(harness.now)
    commands[2].lost(harness.now)
    assert len(harness.commands()) == 3


def test_a_call_whose_requests_all_ended_is_not_sent_again():
    harness = Harness()
    harness.submit(timeout=1)
    (call,) = harness.commands()
    call.lost(harness.now)
    harness.now += 2
    harness.core.tick(harness.now)
    assert harness.commands() == []
    assert not harness.core.wants_commands
