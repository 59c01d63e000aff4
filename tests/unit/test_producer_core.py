"""The client without its sockets: commands out, answers in, a clock of the test's own."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.producer.core import admission
from clipfleet.producer.core.core import LATE_PATIENCE_S, PATIENCE_S, Core
from clipfleet.producer.core.pending import Pending, Stage
from clipfleet.producer.core.trouble import LinkBroken, Remedy, broken_by, remedy_for
from clipfleet.schemas.errors import Cancelled, ErrorCode, Expired, QueueFull, Unavailable, error_for
from clipfleet.schemas.keys import Lane, QueueKeys
from clipfleet.schemas.result import encode_failure, encode_success

KEYS = QueueKeys("q")


class Payload(bytes):
    """As large as it says, without the memory."""

    def __new__(cls, size):
        made = super().__new__(cls, b"x")
        made.size = size
        return made

    def __len__(self):
        return self.size


class Harness:
    """A core, the time, and a look at what it wants to say."""

    def __init__(self, **options):
        settings = {"block_s": 2.0, "wait_for_worker": True, "replicated": False} | options
        self.core = Core(KEYS, "default.me", **settings)
        self.now = 1000.0
        self.told = []

    def submit(self, request_id="a", *, timeout=60.0, size=10, lane=Lane.INTERACTIVE, inbox=True):
        request = Pending(
            request_id, lane, Payload(size) if size > 10 else b"x" * size, self.now, self.now + timeout, inbox=inbox
        )
        self.core.add(request)
        return request

    def commands(self):
        return self.core.commands(self.now)

    def reply(self, command, value):
        command.reply(value, self.now)
        self.told += self.core.take_finished()

    def admit(self, *answers, retry_after_ms=1000):
        (command,) = self.commands()
        taken = sum(b"-" in answer for answer in answers)
        self.reply(command, [taken, retry_after_ms, 5, list(answers)])
        return command

    def results(self, *data):
        turn = self.core.inbox_commands(self.now)
        assert [command.args[0] for command in turn][-2:] == ["BLMOVE", "LRANGE"]
        self.reply(turn[-2], data[0] if data else None)
        self.reply(turn[-1], list(data))
        return [command.args for command in turn]


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


def test_a_key_is_looked_up_ever_less_often_while_somebody_waits():
    harness = Harness()
    request = harness.submit("k", inbox=False)
    harness.admit(b"1-1")
    assert not harness.core.unanswered
    harness.core.look_for(request)
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


def test_a_call_whose_requests_all_ended_is_not_sent_again():
    harness = Harness()
    harness.submit(timeout=1)
    (call,) = harness.commands()
    call.lost(harness.now)
    harness.now += 2
    harness.core.tick(harness.now)
    assert harness.commands() == []
    assert not harness.core.wants_commands
