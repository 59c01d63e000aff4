"""The socket pair between a worker process and its supervisor."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import msgpack
import pytest

from clipfleet.worker.control import Channel
from clipfleet.worker.entry import Entry
from clipfleet.worker.report import MOST_GONE, Reporter

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def entry(number: int, lane: str = "live") -> Entry:
    stream_id = f"{number}-0"
    place = lane, stream_id
    return Entry(lane, stream_id, place, stream_id, number, 0, 1, 0.0, 0, None, None, b"")


def test_messages_come_whole_and_in_order_however_large_they_are(pair: tuple[Channel, Channel]) -> None:
    child, parent = pair
    sent = [["held", {"live": [f"{n}-{m}" for m in range(5_000)]}, {}] for n in range(20)]
    sender = threading.Thread(target=lambda: [child.send(*message) for message in sent])
    sender.start()
    assert [parent.receive() for _ in sent] == sent
    sender.join(10)
    assert not parent.poll()


def test_half_a_message_of_a_stopped_process_does_not_stop_who_listens() -> None:
    end, other = socket.socketpair()
    with other:
        parent = Channel(end)
        packed = msgpack.packb(["held", {"live": {"1-0": 1}}, {}])
        other.sendall(msgpack.packb(["call", 1.5]) + packed[:7])
        assert parent.poll(5)
        assert parent.arrived() == [["call", 1.5]]
        assert parent.arrived() == []
        other.sendall(packed[7:])
        assert parent.arrived() == [["held", {"live": {"1-0": 1}}, {}]]
        parent.close()


def test_the_last_words_of_a_process_are_heard_before_its_end(pair: tuple[Channel, Channel]) -> None:
    child, parent = pair
    child.send("call", None)
    child.send("stats", {"settled": 1})
    child.close()
    assert parent.arrived() == [["call", None], ["stats", {"settled": 1}]]
    assert parent.poll()
    with pytest.raises(EOFError):
        parent.arrived()
    with pytest.raises(EOFError):
        parent.receive()
    with pytest.raises(OSError, match="pipe"):
        parent.send("stop")


# What is held ---------------------------------------------------------------------------------------------------------


def test_what_is_held_is_told_at_once_and_what_is_not_any_more_with_the_next(pair: tuple[Channel, Channel]) -> None:
    child, parent = pair
    reporter = Reporter(child)
    reporter.holding([entry(1), entry(2, "bulk")], [])
    assert parent.arrived() == [["held", {"live": ["1-0"], "bulk": ["2-0"]}, {}]]
    reporter.holding([], [entry(1)])
    assert not parent.poll()
    reporter.holding([entry(3)], [])
    assert parent.arrived() == [["held", {"live": ["3-0"]}, {"live": ["1-0"]}]]
    reporter.flush()
    assert not parent.poll()


def test_what_nothing_follows_is_told_by_a_flush(pair: tuple[Channel, Channel]) -> None:
    child, parent = pair
    reporter = Reporter(child)
    reporter.holding([], [entry(1), entry(2, "bulk")])
    reporter.flush()
    assert parent.arrived() == [["held", {}, {"live": ["1-0"], "bulk": ["2-0"]}]]


def test_much_that_is_not_held_any_more_is_not_kept_for_long(pair: tuple[Channel, Channel]) -> None:
    child, parent = pair
    reporter = Reporter(child)
    reporter.holding([], [entry(number) for number in range(MOST_GONE)])
    ((_, held, gone),) = parent.arrived()
    assert (held, len(gone["live"])) == ({}, MOST_GONE)


def test_of_calls_that_run_at_once_the_oldest_is_told_of_until_it_ends(pair: tuple[Channel, Channel]) -> None:
    child, parent = pair
    reporter = Reporter(child)
    # Given two calls at once
    reporter.calling("hangs", True)
    ((_, began),) = parent.arrived()
    reporter.calling("quick", True)
    # When the younger one ends, and others after it
    reporter.calling("quick", False)
    reporter.calling("quick", True)
    # Then the one that hangs is still the one to be looked at
    assert not parent.poll()
    # And when that is given up, the other one is
    reporter.calling("hangs", False)
    ((_, later),) = parent.arrived()
    assert later > began
    reporter.calling("quick", False)
    assert parent.arrived() == [["call", None]]
