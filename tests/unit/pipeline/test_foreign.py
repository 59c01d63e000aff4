"""Somebody's code that does what nobody expects of it: the item bears it, and nothing else."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet import pipeline
from clipfleet.operators import Noted
from clipfleet.pipeline.fields import Field
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def codes(results: list[pipeline.Result]) -> list[str]:
    return ["ok" if result.error is None else str(result.error.code) for result in results]


def leaving(x: int) -> int:
    return x if x != 3 else sys.exit(1)


def leaving_rows(x: int) -> Iterator[int]:
    yield x
    if x == 3:
        raise asyncio.CancelledError


LEAVING: dict[str, Callable[[], pipeline.Flow]] = {
    "one by one": lambda: pipeline.input("x").map("x", "y", leaving),
    "in batches": lambda: pipeline.input("x").map("x", "y", lambda xs: [leaving(x) for x in xs], max_batch_size=4),
    "inline": lambda: pipeline.input("x").map("x", "y", leaving, inline=True),
    "a source": lambda: pipeline.input("x").flat_map("x", "y", leaving_rows),
}


@pytest.mark.parametrize("flow", LEAVING.values(), ids=LEAVING)
def test_given_code_that_would_end_its_thread_then_it_ends_its_item(flow: Callable[[], pipeline.Flow]) -> None:
    with flow().output("y") as running:
        found = codes(list(running.batch(range(8))))
    assert [number for number, code in enumerate(found) if code != "ok"] == [3]


WRONG: dict[str, Any] = {
    "columns for rows": lambda xs: (list(xs), list(xs)),
    "a dict": dict.fromkeys,
    "a text": lambda xs: "ab",
    "a set": set,
    "nothing": lambda xs: None,
    "a generator": lambda xs: ((x, x) for x in xs),
}


@pytest.mark.parametrize("does", WRONG.values(), ids=WRONG)
def test_given_a_batch_function_without_a_list_of_outputs_then_no_item_gets_the_values_of_another(does: Any) -> None:
    flow = pipeline.input("x").map("x", ("y", "z"), does, name="wrong", max_batch_size=2, max_delay=5.0)
    with flow.output("y", "z") as running:
        for result in running.batch([1, 2]):
            assert "stage 'wrong' gave" in str(result.error)


NOTED: dict[str, Callable[[], pipeline.Flow]] = {
    "one by one": lambda: pipeline.input("x").map("x", "y", noted),
    "in batches": lambda: pipeline.input("x").map("x", "y", lambda xs: [noted(x) for x in xs], max_batch_size=4),
    "inline": lambda: pipeline.input("x").map("x", "y", noted, inline=True),
    "rows": lambda: pipeline.input("x").flat_map("x", "y", lambda x: [noted(x)]),
}


def noted(x: int) -> Noted:
    return Noted(x, {"seen": x})


@pytest.mark.parametrize("flow", NOTED.values(), ids=NOTED)
def test_given_a_value_with_notes_then_the_column_has_the_value(flow: Callable[[], pipeline.Flow]) -> None:
    with flow().output("y") as running:
        found = list(running.batch(range(5)))
    assert [(result.table.item(), result.notes["seen"]) for result in found] == [(x, x) for x in range(5)]


def test_given_a_field_whose_check_breaks_then_that_request_fails() -> None:
    def check(value: int) -> int:
        return {1: 10}[value]

    with pipeline.input(x=Field(check)).map("x", "y", abs).output("y") as running:
        assert codes(list(running.batch([1, 2, 1]))) == ["ok", "internal", "ok"]


def test_given_a_source_of_requests_that_breaks_then_what_it_gave_is_answered_first() -> None:
    def source() -> Iterator[int]:
        yield from range(4)
        raise OSError("gone")

    found = []
    with pipeline.input("x").map("x", "y", abs).output("y") as running, pytest.raises(OSError, match="gone"):
        found.extend(result.table.item() for result in running.batch(source()))
    assert found == [0, 1, 2, 3]


def test_given_a_source_of_requests_that_takes_its_time_then_what_is_done_is_given_at_once() -> None:
    done = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        assert done.wait(10)
        time.sleep(0.05)  # taking its time is what this source is for
        yield 2
        yield pytest.fail("the first result was kept back")

    def told(x: int) -> int:
        done.set()
        return x

    with pipeline.input("x").map("x", "y", told).output("y") as running:
        assert next(running.batch(source())).table.item() == 1


def test_given_a_source_of_rows_that_hangs_then_the_timeout_counts_for_each_row() -> None:
    freed = threading.Event()

    def rows(x: int) -> Iterator[int]:
        yield x
        if x == 3:
            freed.wait()
        yield -x

    flow = pipeline.input("x").flat_map("x", "y", rows, timeout=0.3).map("y", "z", str)
    try:
        with flow.output("z") as running:
            found = list(running.batch(range(6)))
            assert codes(found) == ["ok"] * 3 + ["model_failed"] + ["ok"] * 2
            assert "'rows' took longer than 0.3 s" in str(found[3].error)
            assert found[5].table["z"] == ["5", "-5"]
            freed.set()
            wait_until(lambda: sum(one.name.startswith("rows-") for one in threading.enumerate()) == 1)
            assert running(7)["z"] == ["7", "-7"]
    finally:
        freed.set()


def endless(x: int) -> Iterator[int]:
    while True:
        yield x


def test_given_rows_without_end_of_which_none_comes_to_a_stage_when_closed_or_cancelled_then_they_end() -> None:
    flow = pipeline.input("x").flat_map("x", "y", lambda x: endless(x) if x else [0])
    with flow.filter("y", lambda y: not y, inline=True).output("y") as running:
        stream = running.batch([0, 1, 1, 1, 1, 0], max_in_flight=5)
        assert next(stream).ok
        stream.close()  # nobody waits for the others any more: they leave the threads to the next one
        assert running(0)["y"] == [0]
        waiting = threading.Thread(target=lambda: next(running.batch([1])), daemon=True)
        waiting.start()
    waiting.join(10)
    assert not waiting.is_alive()


def test_given_a_call_that_hangs_when_the_pipeline_is_closed_then_its_timeout_counts() -> None:
    hung, freed = threading.Event(), threading.Event()

    def hang(x: int) -> int:
        hung.set()
        freed.wait()
        return x

    running = pipeline.input("x").map("x", "y", hang, timeout=0.5).output("y")
    found: list[pipeline.Result] = []
    waiting = threading.Thread(target=lambda: found.extend(running.batch([1])), daemon=True)
    waiting.start()
    try:
        assert hung.wait(10)
        running.close()
        waiting.join(10)
        assert codes(found) == ["model_failed"]
    finally:
        freed.set()


def test_given_a_fork_of_a_process_with_a_running_pipeline_then_the_child_starts_its_own() -> None:
    with pipeline.input("x").map("x", "y", abs).output("y") as running:
        assert running(-1).item() == 1
        child = os.fork()
        if child == 0:
            threading.Timer(20, lambda: os._exit(9)).start()
            os._exit(0 if running(-2).item() == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert running(-3).item() == 3


def test_given_a_source_of_rows_that_takes_its_time_then_each_row_goes_on_at_once() -> None:
    seen = threading.Event()

    def rows(_: int) -> Iterator[int]:
        yield 1
        assert seen.wait(10)
        yield 2

    flow = pipeline.input("x").flat_map("x", "y", rows).sink("y", lambda _: seen.set(), instances=1)
    with flow.output("y") as running:
        assert running(0)["y"] == [1, 2]
