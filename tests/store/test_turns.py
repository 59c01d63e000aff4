"""Searches go before writes on a store that does one thing at a time."""

from __future__ import annotations

import threading

import pytest

from clipfleet.store.turns import Turns


@pytest.mark.parametrize("in_turn", [True, False], ids=["one at a time", "a server"])
def test_given_a_search_under_way_then_a_write_waits_for_it_where_the_store_does_one_thing_at_a_time(
    in_turn: bool,
) -> None:
    asked: list[bool] = []

    def told() -> bool:
        asked.append(in_turn)
        return in_turn

    turns = Turns(told, most_s=60.0)
    order: list[str] = []

    def write() -> None:
        turns.await_write()
        order.append("written")

    with turns.searching(), turns.searching():
        writing = threading.Thread(target=write)
        writing.start()
        if not in_turn:
            writing.join(30)
        order.append("found")
    writing.join(30)
    assert order == (["found", "written"] if in_turn else ["written", "found"])
    # And what store it is was asked once
    assert turns.await_write()
    assert asked == [in_turn]


def test_given_searches_without_end_then_a_write_has_its_turn_all_the_same() -> None:
    turns = Turns(lambda: True, most_s=0.01)
    with turns.searching():
        assert not turns.await_write()


def test_given_a_search_that_fails_then_nobody_waits_for_it() -> None:
    turns = Turns(lambda: True, most_s=60.0)
    with pytest.raises(RuntimeError), turns.searching():
        raise RuntimeError("no")
    assert turns.await_write()
