"""Room for rows: whatever becomes of requests, it comes back, and nobody waits for it for ever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet import pipeline
from clipfleet.pipeline.room import Room
from clipfleet.pipeline.work import Group
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


def room_of(running: pipeline.Pipeline) -> Room:
    return running.local()._engine._rows._room


class Rows:
    """Ten rows a request; what happens at the third of them is in the request."""

    def __init__(self) -> None:
        self.freed = threading.Event()

    def source(self, what: str) -> Iterator[tuple[str, int]]:
        for number in range(10):
            if number == 3 and what == "source raises":
                raise ValueError
            if number == 3 and what == "source hangs":
                self.freed.wait()
            yield what, number

    def listed(self, what: str) -> Any:
        if what.startswith("source"):
            return self.source(what)
        return None if what == "no rows" else [(what, number) for number in range(10)]

    def one(self, what: str, number: int) -> int:
        if number == 3 and what == "hangs":
            self.freed.wait()
        if number == 3 and what == "raises":
            raise ValueError
        return number

    def many(self, whats: list[str], numbers: list[int]) -> list[Any]:
        if any(what == "batch raises" and number == 3 for what, number in zip(whats, numbers, strict=True)):
            raise ValueError
        return [
            ValueError() if what == "batch fails it" and number == 3 else number
            for what, number in zip(whats, numbers, strict=True)
        ]

    def pipeline(self) -> pipeline.Pipeline:
        flow = pipeline.input("x").flat_map("x", ("what", "n"), self.listed, timeout=0.2)
        flow = flow.filter(("what", "n"), lambda what, n: what != "drops" or n % 2, inline=True)
        one = flow.map(("what", "n"), "a", self.one, timeout=0.2, instances=2)
        many = flow.map(("what", "n"), "b", self.many, max_batch_size=4, max_delay=0.0)
        below = one.concat(many).flat_map(("a", "b"), "c", lambda a, b: [a, b][: a % 3])
        return below.window_all("c", "cs", list).window_all("cs", "all", list).output("all")


WHATS = st.sampled_from(
    ["fine", "drops", "no rows", "raises", "batch raises", "batch fails it", "source fine", "source raises"]
)
SLOW = st.sampled_from(["hangs", "source hangs"])
FINE = [[number, number][: number % 3] for number in range(10)]


@settings(max_examples=25, deadline=None)
@given(st.lists(WHATS, min_size=1, max_size=40), st.lists(SLOW, max_size=2), st.integers(0, 40), st.integers(1, 40))
def test_whatever_becomes_of_requests_all_room_comes_back(
    whats: list[str], slow: list[str], stop_after: int, in_flight: int
) -> None:
    rows = Rows()
    try:
        with rows.pipeline().open(max_batch_size=4, max_delay=0.0) as running:
            room = room_of(running)
            room._most = 5  # so that they starve each other
            stream = running.batch([*whats, *slow, *whats], max_in_flight=in_flight)
            for what, result, _ in zip([*whats, *slow, *whats], stream, range(stop_after), strict=False):
                assert result.ok == (what in {"fine", "drops", "source fine"})
                assert not what.endswith("fine") or result.table.item() == FINE
            stream.close()
            running.flush()
            wait_until(lambda: room._used == 0, description="all of the room")
            assert running("fine").item() == FINE
            assert not room._starved
    finally:
        rows.freed.set()


def test_given_a_request_that_goes_on_row_by_row_while_another_has_the_room_then_it_waits_in_line_once() -> None:
    # One that has no row may always have one, so that it ends; each time it asks for a second one in vain.
    freed = threading.Event()

    def one(x: int, y: int) -> int:
        if x == 5 and y < 5:
            freed.wait()
        return y

    flow = pipeline.input("x").flat_map("x", "y", range).map(("x", "y"), "z", one, instances=6)
    with flow.window_all("z", "n", len).output("n") as running:
        room = room_of(running)
        room._most = 5
        lengths: list[int] = []
        holder = threading.Thread(target=lambda: lengths.append(running(5).item()))
        holder.start()
        try:
            wait_until(lambda: room._used == 5, description="the room to be taken")
            assert running(300).item() == 300
            assert len(room._starved) <= 2
        finally:
            freed.set()
        holder.join(20)
    assert lengths == [5]


class Over:
    over = True


def test_given_a_group_that_ended_while_it_waited_for_room_then_the_next_one_gets_it() -> None:
    room = Room(1)
    over, alive = Over(), Over()
    alive.over = False
    groups: list[Any] = [object.__new__(Group) for _ in range(3)]
    for group in groups:
        group.live, group.starved, group.source = 1, False, iter(())
    first: Any = over
    second: Any = alive
    groups[0].live = 0
    assert room.take(second, groups[0])
    assert not room.take(first, groups[1])
    assert not room.take(second, groups[2])
    assert room.give() == (alive, groups[2])
