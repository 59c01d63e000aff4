"""Rows through graphs: what any definition gives is what walking through it naively gives."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet import pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.pipeline import Flow, Pipeline

Values = dict[str, Any]


class Naive:
    """A definition and, beside it, its rows: a list of (path, values) for the one request ``x``.

    Each method does to the flow what it does to the rows, by recursion over lists and nothing else.
    """

    def __init__(self, flow: Flow, rows: list[tuple[tuple[int, ...], Values]]) -> None:
        self.flow, self.rows = flow, rows

    def map(self, name: str, options: Values) -> Naive:
        last = self.last
        flow = self.flow.map(last, name, _listed(lambda v: v * 3 + 1, options), **options)
        return Naive(flow, [(path, {**values, name: values[last] * 3 + 1}) for path, values in self.rows])

    def filter(self) -> Naive:
        last = self.last
        flow = self.flow.filter(last, lambda v: v % 3 != 1)
        return Naive(flow, [(path, values) for path, values in self.rows if values[last] % 3 != 1])

    def flat_map(self, name: str, lazy: bool) -> Naive:
        last = self.last
        flow = self.flow.flat_map(last, name, _lazy_parts if lazy else _parts)
        rows = [
            ((*path, number), {**values, name: one})
            for path, values in self.rows
            for number, one in enumerate(_parts(values[last]))
        ]
        return Naive(flow, rows)

    def window_all(self, name: str, above: list[tuple[tuple[int, ...], Values]]) -> Naive:
        last = self.last
        flow = self.flow.window_all(last, name, sum)
        return Naive(flow, [(path, {**values, name: sum(self.below(path, last))}) for path, values in above])

    def window(self, name: str, above: list[tuple[tuple[int, ...], Values]], size: int, step: int) -> Naive:
        last = self.last
        flow = self.flow.window(last, name, size, step, sum)
        rows = []
        for path, values in above:
            found = self.below(path, last)
            rows += [
                ((*path, number), {**values, name: sum(found[at : at + size])})
                for number, at in enumerate(range(0, len(found), step))
            ]
        return Naive(flow, rows)

    def below(self, path: tuple[int, ...], column: str) -> list[int]:
        return [values[column] for mine, values in self.rows if mine[:-1] == path]

    @property
    def last(self) -> str:
        return list(self.flow.columns)[-1] if len(self.flow.columns) > 1 else "x"


def _parts(value: int) -> list[int]:
    return [value + number for number in range(value % 4)]


def _lazy_parts(value: int) -> Iterator[int]:
    yield from _parts(value)


def _listed(one: Callable[[int], int], options: Values) -> Callable[..., Any]:
    return (lambda many: [one(value) for value in many]) if "max_batch_size" in options else one


OPTIONS = st.sampled_from([{}, {"inline": True}, {"max_batch_size": 3}, {"instances": 2}])


@st.composite
def definitions(draw: st.DrawFn) -> tuple[Pipeline, Callable[[int], list[tuple[Any, ...]]]]:
    """A pipeline, and a function from a request to the rows that it must give."""
    plan = draw(
        st.lists(st.tuples(st.sampled_from(["map", "filter", "flat", "lazy", "all", "window"]), OPTIONS), max_size=7)
    )

    def build(x: int) -> Naive:
        naive = Naive(pipeline.input("x"), [((), {"x": x})])
        levels = [naive.rows]
        for number, (kind, options) in enumerate(plan):
            name = f"c{number}"
            if kind == "map":
                naive = naive.map(name, options)
            elif kind == "filter":
                naive = naive.filter()
            elif kind in {"flat", "lazy"} and len(levels) < 4:
                naive = naive.flat_map(name, kind == "lazy")
                levels.append(naive.rows)
                continue
            elif kind == "all" and len(levels) > 1:
                levels.pop()
                naive = naive.window_all(name, levels[-1])
            elif kind == "window" and len(levels) > 1:
                naive = naive.window(name, levels[-2], 2, 1 + number % 3)
            levels[-1] = naive.rows
        return naive

    first = build(0)
    outputs = tuple(name for name in first.flow.columns if not name.startswith("["))

    def expected(x: int) -> list[tuple[Any, ...]]:
        return [tuple(values[name] for name in outputs) for _, values in build(x).rows]

    return first.flow.output(*outputs), expected


@settings(max_examples=60, deadline=None)
@given(definitions(), st.lists(st.integers(0, 30), max_size=8))
def test_given_any_definition_when_it_is_run_then_its_rows_are_those_of_a_naive_walk(
    definition: tuple[Pipeline, Callable[[int], list[tuple[Any, ...]]]], requests: list[int]
) -> None:
    defined, expected = definition
    with defined.open(max_batch_size=4, max_delay=0.0) as running:
        results = list(running.batch(requests))
    assert [list(result.table.rows) for result in results] == [expected(x) for x in requests]


def test_given_branches_when_they_are_joined_then_a_row_has_the_columns_of_all_of_them() -> None:
    flow = pipeline.input("x").map("x", "y", lambda x: x + 1)
    rows = flow.flat_map("y", "z", lambda y: [y, y * 10])
    other = flow.map("x", "k", lambda x: -x)
    with rows.concat(other).map(("z", "k"), "zk", lambda z, k: (z, k)).output("x", "zk") as joined:
        assert list(joined(5).rows) == [(5, (6, -5)), (5, (60, -5))]


def test_given_a_branch_that_filters_when_it_is_joined_then_a_row_that_it_dropped_does_not_go_on() -> None:
    flow = pipeline.input("x")
    rows = flow.flat_map("x", "y", range)
    odd = rows.filter("y", lambda y: y % 2).map("y", "odd", lambda y: y * 100)
    with rows.map("y", "z", lambda y: y + 1).concat(odd).output("z", "odd") as joined:
        assert list(joined(5).rows) == [(2, 100), (4, 300)]
    kept = flow.filter("x", lambda x: x > 2)
    with rows.concat(kept).output("y") as above:
        assert list(above(2).rows) == []
        assert len(above(3)) == 3


def test_given_a_pipeline_in_a_stages_place_then_it_runs_there() -> None:
    twice = pipeline.input("a").map("a", "b", lambda a: a * 2).output("b")
    each = pipeline.input("n").flat_map("n", "i", range).map("i", "j", twice).output("n", "j")
    whole = pipeline.input("x").map("x", "y", twice).flat_map("y", ("n", "j"), each).filter("j", lambda j: j)
    with whole.window_all(("n", "j"), "told", lambda ns, js: (ns, js)).output("x", "told") as running:
        assert running(2).rows == ((2, ([4, 4, 4], [2, 4, 6])),)


def test_given_a_sink_then_it_gets_each_row_before_the_request_is_answered() -> None:
    seen: list[int] = []
    flow = pipeline.input("x").flat_map("x", "y", range).sink("y", seen.append)
    with flow.window_all("y", "n", len).output("n") as running:
        assert running(5).item() == 5
        assert sorted(seen) == [0, 1, 2, 3, 4]


def test_given_reduce_and_time_windows_then_rows_are_folded_and_cut_by_their_seconds() -> None:
    flow = pipeline.input("x").flat_map("x", ("at", "y"), lambda x: [(one * 0.5, one) for one in range(x)])
    with flow.reduce("y", "sum", lambda so_far, y: so_far + y, 100).output("sum") as folded:
        assert folded(4).item() == 106
        assert folded(0).item() == 100
    with flow.time_window("y", "ys", "at", 1.0, 1.0, list).output("ys") as cut:
        assert cut(5)["ys"] == [[0, 1], [2, 3], [4]]


def test_given_a_million_rows_then_few_are_live_at_once_and_the_source_is_read_as_far_as_there_is_room() -> None:
    made = done = most = 0
    lock = threading.Lock()

    def many(count: int) -> Iterator[int]:
        nonlocal made, most
        for number in range(count):
            with lock:
                made += 1
                most = max(most, made - done)
            yield number

    def one(_: int) -> int:
        nonlocal done
        with lock:
            done += 1
        return 1

    flow = pipeline.input("n").flat_map("n", "i", many).map("i", "j", one)
    with flow.window_all("j", "sum", sum).output("sum") as running:
        assert running(20_000).item() == 20_000
    assert most <= 2 * 2 * 16 + 1


def test_given_a_column_that_nothing_reads_any_more_then_its_value_is_let_go_while_the_request_goes_on() -> None:
    class Pixels:
        pass

    made: list[weakref.ref[Pixels]] = []

    def decode(_: int) -> Pixels:
        pixels = Pixels()
        made.append(weakref.ref(pixels))
        return pixels

    def alive(_: int) -> bool:
        gc.collect()
        return made[-1]() is not None

    flow = pipeline.input("x").map("x", "pixels", decode).map("pixels", "y", lambda _: 1)
    with flow.map("y", "alive", alive).output("alive") as freed:
        assert freed(0).item() is False
    # Two readers: it stays until the request ends.
    with flow.map(("y", "pixels"), "alive", lambda y, _: alive(y)).output("alive") as kept:
        assert kept(0).item() is True


@pytest.mark.parametrize("lazy", [False, True])
def test_given_many_requests_with_rows_below_rows_then_all_of_them_end(lazy: bool) -> None:
    rows = (lambda n: iter(range(n))) if lazy else (lambda n: list(range(n)))
    flow = pipeline.input("n").flat_map("n", "i", rows).flat_map("i", "j", rows).map("j", "k", lambda j: j * j)
    flow = flow.window_all("k", "a", sum).window_all("a", "b", sum)
    with flow.output("b") as running:
        found = [result.table.item() for result in running.batch([30] * 40)]
    assert found == [sum(k * k for j in range(30) for k in range(j))] * 40
