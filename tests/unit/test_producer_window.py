"""What map keeps in its hands."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.producer import QueueFull, requests
from clipfleet.producer.core.window import SHORTEST_PAUSE_S, Window, failure_of, pause_after
from clipfleet.producer.threads.stream import stream
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.result import Result


def done(number):
    return Result(str(number), ok=True)


def full():
    return Result("x", ok=False, error=QueueFull(1.0))


@settings(max_examples=50, deadline=None)
@given(luck=st.integers(0, 2**32).map(Random), size=st.integers(1, 20), total=st.integers(0, 60), ordered=st.booleans())
def test_every_item_comes_out_once_and_never_more_than_the_size_is_in_hand(luck, size, total, ordered):
    window, now, taken, flying, out = Window(size, ordered=ordered), 0.0, 0, [], []
    while taken < total or not window.empty:
        flying += window.resend(now)
        for _ in range(min(window.room, total - taken)):
            flying.append(window.add(requests.echo(taken)))
            taken += 1
        assert taken - len(out) <= size
        if items := window.take():
            assert len(items) <= max(1, size // 8)
            for request, result in items:
                out.append(request.inputs["data"])
                assert result.ok
        elif flying:
            entry = flying.pop(luck.randrange(len(flying)))
            refused = luck.randrange(10) == 0
            window.ended(entry, full() if refused else done(0), now)
        else:
            now += window.pause_s(now)
    assert sorted(out) == list(range(total))
    assert not ordered or out == sorted(out)


def test_nothing_more_is_taken_while_the_queue_is_full():
    window = Window(8, ordered=True)
    entries = [window.add(requests.echo(n)) for n in range(4)]
    assert window.room == 4
    window.ended(entries[2], full(), 100.0)
    assert window.room == 0
    assert window.resend(100.0) == []
    pause = window.pause_s(100.0)
    assert SHORTEST_PAUSE_S <= pause <= 1.0
    assert window.resend(100.0 + pause) == [entries[2]]
    assert window.room == 4


def test_new_ones_are_taken_in_groups_while_results_are_at_hand():
    window = Window(64, ordered=False)
    entries = [window.add(requests.echo(n)) for n in range(64)]
    for entry in entries:
        window.ended(entry, done(0), 0.0)
    assert window.room == 0
    for free in range(8, 65, 8):
        assert len(window.take()) == 8
        assert window.room == free
    assert window.take() == []
    assert window.empty


def test_abandoning_cancels_what_is_on_its_way_alone():
    window, cancelled = Window(8, ordered=True), []
    entries = [window.add(requests.echo(n)) for n in range(3)]
    for number, entry in enumerate(entries):
        entry.job = SimpleNamespace(cancel=lambda number=number: cancelled.append(number))
    window.ended(entries[1], done(1), 0.0)
    window.abandon()
    assert sorted(cancelled) == [0, 2]


@given(st.floats(0.05, 30), st.floats(0, 1))
def test_the_pause_is_a_part_of_the_time_that_the_backlog_needs(retry_after, luck):
    assert SHORTEST_PAUSE_S <= pause_after(retry_after, luck) <= min(5.0, max(SHORTEST_PAUSE_S, 0.31 * retry_after))


def test_a_window_holds_at_least_one():
    with pytest.raises(ValueError, match="max_in_flight"):
        Window(0, ordered=True)


@pytest.mark.parametrize("item", ["a", None, {"text": "a"}])
def test_what_is_no_request_is_a_type_error(item):
    window = Window(1, ordered=True)
    with pytest.raises(TypeError, match=r"requests\.embed_text\("):
        window.add(item)
    assert window.empty


def test_an_item_that_cannot_be_sent_is_a_failed_result():
    missing = failure_of(requests.echo(1), FileNotFoundError(2, "No such file or directory", "a.png"))
    assert (missing.error.code, missing.error.retryable) == (ErrorCode.FETCH_FAILED, False)
    assert str(missing.error) == "fetch_failed: cannot read 'a.png': No such file or directory"
    assert failure_of(requests.echo(1), error_for("bad_request")).error.code is ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("ordered", [True, False])
def test_given_a_source_that_takes_its_time_when_results_have_come_then_all_are_given_before_it_is_asked_again(
    monkeypatch, ordered
):
    monkeypatch.setattr("clipfleet.producer.threads.stream._SOON_S", -1.0)  # any source is slow
    taken, waiting = [], []

    def source():
        for number in range(40):
            taken.append(number)
            yield requests.echo(number)

    def send(_request, sink):
        job = SimpleNamespace(entry=None, ending=done(0))
        waiting.append(job)
        if len(waiting) == 10:
            # Ten come at once, more than the group of eight that is given before there is another look for room
            for each in waiting:
                sink(each)
            waiting.clear()
        return job

    for count, _ in enumerate(stream(source(), Window(64, ordered=ordered), send), start=1):
        assert len(taken) == -(-count // 10) * 10
    assert count == 40
