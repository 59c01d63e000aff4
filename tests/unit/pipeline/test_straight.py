"""Programs whose steps are one line: they take it without counting, and nobody can tell the difference."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet import pipeline
from clipfleet.batching import BatchPolicy, Lane
from clipfleet.operators.operator import Place
from clipfleet.operators.services import ProcessServices
from clipfleet.pipeline import compile as compiler
from clipfleet.pipeline.moves import Moves
from clipfleet.pipeline.rows import Rows
from clipfleet.pipeline.work import Work
from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.schemas.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.pipeline import Pipeline
    from clipfleet.pipeline.program import Program

ODD = 7


def _one(value: int) -> int:
    if value % 10 == ODD:
        raise ValueError("not this one")
    return value * 3 + 1


def _pair(value: int) -> Any:
    return (value, value + 1) if value % 10 != ODD else (value,)


def _listed(run: Callable[[int], Any]) -> Callable[[list[int]], list[Any]]:
    def all_of(values: list[int]) -> list[Any]:
        found: list[Any] = []
        for value in values:
            try:
                found.append(run(value))
            except ValueError as error:
                found.append(error)
        return found

    return all_of


KINDS = st.sampled_from(["one", "pair", "sink"])
OPTIONS = st.sampled_from([{}, {"inline": True}, {"max_batch_size": 3}, {"instances": 2}])


@st.composite
def lines(draw: st.DrawFn) -> Pipeline:
    flow, last = pipeline.input("x"), "x"
    for number, (kind, options) in enumerate(draw(st.lists(st.tuples(KINDS, OPTIONS), max_size=5))):
        run = _pair if kind == "pair" else _one
        does = _listed(run) if "max_batch_size" in options else run
        if kind == "sink":
            flow = flow.sink(last, does, **options)
        else:
            name = f"c{number}"
            flow = flow.map(last, name if kind == "one" else (name, f"{name}b"), does, **options)
            last = name
    return flow.output(*flow.columns)


def outcomes(made: Pipeline) -> list[Any]:
    with made.open() as running:
        return [one.error.code if one.error else list(one.table) for one in running.batch(range(20))]


@settings(max_examples=12, deadline=None)
@given(made=lines())
def test_given_any_line_of_steps_when_run_then_it_gives_what_the_general_way_gives(made: Pipeline) -> None:
    found = outcomes(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "is_straight", lambda _first: False)
        assert outcomes(made) == found


# Which are straight --------------------------------------------------------------------------------------------------


def program(made: Pipeline) -> Program:
    place = Place(ProcessServices(model=None), "cpu", (), 1)
    served = compiler.compile_pipelines({"p": made}, place, BatchPolicy(4, 0.0))
    return served.program("p", {"x": 1})


def branches() -> Pipeline:
    flow = pipeline.input("x")
    return flow.map("x", "y", _one).concat(flow.map("x", "z", _one)).output("y", "z")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pipeline.input("x").output("x"), True),
        (pipeline.input("x").map("x", "y", _one).map("y", "z", _listed(_one), max_batch_size=3).output("z"), True),
        (pipeline.input("x").sink("x", _one).output("x"), True),
        (pipeline.input("x").filter("x", bool).output("x"), False),
        (pipeline.input("x").flat_map("x", "y", range).output("y"), False),
        (branches(), False),
    ],
    ids=["nothing", "stages", "sink", "filter", "rows below", "branches"],
)
def test_given_a_definition_when_compiled_then_only_one_line_over_one_row_is_straight(
    made: Pipeline, expected: bool
) -> None:
    assert program(made).straight is expected


# Who ends it ----------------------------------------------------------------------------------------------------------


def begun(made: Pipeline) -> tuple[Rows, Work, Moves]:
    one = program(made)
    work = Work(
        Request("a", "p", {"x": 1}),
        one,
        None,
        enqueued_at=0.0,
        deadline=time.monotonic() + 60,
        lane=Lane.INTERACTIVE,
        values=one.read_inputs({"x": 1}, {}),
    )
    rows, moves = Rows(4, cast("Any", None)), Moves()
    rows.begin(work, 0.0, moves)
    return rows, work, moves


def test_given_a_request_with_its_verdict_when_its_step_ends_then_it_does_not_end_again() -> None:
    rows, work, first = begun(pipeline.input("x").map("x", "y", _one).output("y"))
    (task,) = first.tasks
    assert work.claim()
    late = Moves()
    rows.done(task, 4, late)
    rows.drop(task, late)
    assert (late.tasks, late.ended, late.broken) == ([], [], [])


def test_given_a_step_without_a_thread_that_raises_when_it_is_done_then_its_request_is_broken_once() -> None:
    _, work, moves = begun(pipeline.input("x").map("x", "y", lambda _: 1 / 0, inline=True).output("y"))
    assert (moves.tasks, moves.ended) == ([], [])
    ((broken, error),) = moves.broken
    assert broken is work
    assert isinstance(error, ZeroDivisionError)
    assert not work.claim()


def test_given_a_place_that_was_announced_when_its_task_is_prepared_then_the_next_one_has_it() -> None:
    rows, _, first = begun(pipeline.input("x").map("x", "y", _one).map("y", "z", list, max_batch_size=3).output("z"))
    (task,) = first.tasks
    task.ticket = 5
    moves = Moves()
    rows.done(task, 4, moves)
    assert [one.ticket for one in moves.tasks] == [5]
    assert task.ticket is None


def test_given_values_of_another_number_when_a_step_gives_them_then_its_place_stays_to_be_given_back() -> None:
    rows, _, first = begun(pipeline.input("x").map("x", ("y", "z"), _pair).output("z"))
    (task,) = first.tasks
    task.ticket = 5
    moves = Moves()
    rows.done(task, (1, 2, 3), moves)
    ((_, error),) = moves.broken
    assert isinstance(error, RequestFailed)
    assert error.code is ErrorCode.MODEL_FAILED
    assert task.ticket == 5
