"""Definitions: checked as they are built, each error naming its stage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet import pipeline
from clipfleet.operators import clip_image, milvus_delete, resize
from clipfleet.pipeline import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable


def start() -> pipeline.Flow:
    return pipeline.input("a", "b")


def twice() -> pipeline.Pipeline:
    return pipeline.input("x").map("x", "y", abs).output("y")


def add(x: int, y: int) -> int:
    return x + y


async def later(x: int) -> int:
    return await asyncio.sleep(0, x)


WRONG: list[tuple[str, Callable[[], Any], str]] = [
    ("unknown column", lambda: start().map("c", "d", abs), "map 'c': there is no column 'c' here; there are a, b"),
    (
        "a column of rows that are closed",
        lambda: start().flat_map("a", "x", range).window_all("x", "n", len).map("x", "y", abs),
        "map 'x': there is no column 'x' here; there are a, b, n",
    ),
    ("unknown output", lambda: start().output("z"), "output 'z': there is no column 'z'"),
    ("unused input", lambda: start().map("a", "c", abs).output("c"), "input 'b': no stage and no output uses it"),
    ("too few columns", lambda: start().map("a", "c", add), r"map 'a' \(add\): it cannot be called with 1 column:"),
    ("no function", lambda: start().map("a", "c", 3), "map 'a' .*3 can be called by nobody"),  # type: ignore[arg-type]
    ("an async function", lambda: start().map("a", "c", later), "stages run in threads"),
    ("twice the same output", lambda: start().map("a", ("c", "c"), add), "columns are different names"),
    ("unknown option", lambda: start().map("a", "c", abs, workers=3), "no option 'workers'; there are name, instances"),
    ("impossible option", lambda: start().map("a", "c", abs, instances=0), "instances must be a whole number, 1 or"),
    ("half an instance", lambda: start().map("a", "c", abs, instances=1.5), "instances must be a whole number"),
    ("a number as text", lambda: start().map("a", "c", abs, max_batch_size="8"), "max_batch_size must be a whole"),
    ("no such device", lambda: start().map("a", "c", abs, device="gpu"), "device must be 'cpu' or 'cuda:N': 'gpu'"),
    ("no such provider", lambda: start().map("a", "c", abs, providers=("rocm",)), "providers must be some of tensorrt"),
    ("one provider as text", lambda: start().map("a", "c", abs, providers="cpu"), "in a tuple: 'cpu'"),
    ("a batch inline", lambda: start().map("a", "c", clip_image(), inline=True), "cannot be inline"),
    ("lists inline", lambda: start().map("a", "c", list, inline=True, max_batch_size=2), "cannot be inline"),
    ("a timeout inline", lambda: start().map("a", "c", abs, inline=True, timeout=1), "no thread of its own"),
    ("a delay of no batch", lambda: start().map("a", "c", abs, max_delay=1), "say max_batch_size"),
    ("batches of what forms none", lambda: start().map("a", "c", resize(8), max_batch_size=2), "items one by one"),
    ("batches of nothing", lambda: start().map((), "c", list, max_batch_size=2), "needs an input column"),
    ("options of a pipeline", lambda: start().map("a", "c", twice(), timeout=1), "timeout belong to the steps inside"),
    ("a timeout of the store", lambda: start().sink("a", milvus_delete("c"), timeout=1), "has no timeout"),
    ("no output", lambda: start().output(), "output: name at least one column"),
    ("nothing to gather", lambda: start().window_all("a", "c", len), "window_all 'a': there are no rows to gather"),
    ("an empty window", lambda: start().flat_map("a", "x", range).window("x", "y", 0, 1, len), "at least 1, not 0"),
    ("no input", pipeline.input, "name at least one column"),
    ("no name", lambda: pipeline.input("a b"), "names are letters"),
    ("other inputs", lambda: start().concat(pipeline.input("a")), "begin with different inputs"),
]


@pytest.mark.parametrize(("define", "text"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_given_a_definition_that_cannot_work_then_it_is_refused_with_the_name_of_its_stage(
    define: Callable[[], Any], text: str
) -> None:
    with pytest.raises(PipelineError, match=text):
        define()


def test_given_two_branches_that_opened_rows_each_then_they_cannot_be_joined() -> None:
    flow = pipeline.input("a")
    with pytest.raises(PipelineError, match="both opened rows of their own"):
        flow.flat_map("a", "x", range).concat(flow.flat_map("a", "y", range))


def test_given_rows_joined_with_what_is_made_of_all_of_them_then_that_is_a_cycle() -> None:
    rows = pipeline.input("a").flat_map("a", "x", range)
    with pytest.raises(PipelineError, match="is a cycle"):
        rows.concat(rows.window_all("x", "n", len))


def test_given_a_cycle_through_two_joins_then_it_is_found_when_the_definition_is_closed() -> None:
    flow = pipeline.input("a")
    left, right = flow.flat_map("a", "x", range), flow.flat_map("a", "y", range)
    one = left.concat(right.window_all("y", "ny", len)).window_all("x", "left", len)
    two = right.concat(left.window_all("x", "nx", len)).window_all("y", "right", len)
    with pytest.raises(PipelineError, match="a cycle: these wait for each other"):
        one.concat(two).output("left", "right")


def test_given_two_branches_that_make_the_same_column_then_the_join_names_it() -> None:
    flow = pipeline.input("a")
    with pytest.raises(PipelineError, match="both make a column 'c'"):
        flow.map("a", "c", abs).concat(flow.map("a", "c", str))


def test_given_a_flow_when_it_is_continued_twice_then_neither_sees_the_other() -> None:
    flow = pipeline.input("a")
    one = flow.map("a", "b", lambda a: a + 1)
    assert set(flow.columns) == {"a"}
    assert set(flow.map("a", "c", abs).columns) == {"a", "c"}
    assert set(one.columns) == {"a", "b"}
    with pytest.raises(AttributeError):
        flow.scope = ()  # type: ignore[misc]


def test_given_another_pipeline_in_a_stages_place_then_its_columns_and_rows_are_checked() -> None:
    pair = pipeline.input("a").map("a", ("b", "c"), lambda a: (a, a)).output("b", "c")
    rows = pipeline.input("n").flat_map("n", "i", range).output("i")
    with pytest.raises(PipelineError, match="it gives 2 columns"):
        pipeline.input("x").map("x", "y", pair)
    with pytest.raises(PipelineError, match=r"it takes 1 column \("):
        pipeline.input("x", "z").map(("x", "z"), ("y", "w"), pair)
    with pytest.raises(PipelineError, match="it gives many rows; use flat_map"):
        pipeline.input("x").map("x", "y", rows)
    with pytest.raises(PipelineError, match="it gives one row; use map"):
        pipeline.input("x").flat_map("x", ("y", "w"), pair)


def test_given_a_choice_then_each_variant_must_take_what_chooses_it() -> None:
    words = pipeline.input("text").output("text")
    with pytest.raises(PipelineError, match="the pipeline for 'image' has no such input"):
        pipeline.choice(image=words)
    with pytest.raises(PipelineError, match="name at least one"):
        pipeline.choice()
    with pytest.raises(PipelineError, match="a choice has no place in another pipeline"):
        pipeline.input("text").map(
            "text", "again", pipeline.choice(text=words, other=pipeline.input("other").output("other"))
        )
