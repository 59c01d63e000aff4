"""Stages at work here: batches, instances, errors that stay with their item, calls that hang, and back-pressure."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from clipfleet import pipeline
from clipfleet.operators import BatchOperator, Noted, Opened, Operator
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clipfleet.operators import Place


def codes(results: list[pipeline.Result]) -> list[str]:
    return ["ok" if result.error is None else str(result.error.code) for result in results]


def test_given_a_stage_with_a_batch_size_then_a_plain_function_gets_lists_as_full_as_the_stream_makes_them() -> None:
    sizes: list[int] = []

    def double(xs: list[int]) -> list[int]:
        sizes.append(len(xs))
        return [x * 2 for x in xs]

    with pipeline.input("x").map("x", "y", double, max_batch_size=8, max_delay=0.05).output("y") as running:
        assert [result.table.item() for result in running.batch(range(64))] == [x * 2 for x in range(64)]
    assert max(sizes) == 8
    assert sum(sizes) == 64
    assert len(sizes) <= 12


def test_given_rows_of_many_requests_then_they_are_batched_together_and_come_back_to_their_own() -> None:
    mixed: list[int] = []

    def tag(owners: list[int], parts: list[int]) -> list[tuple[int, int]]:
        mixed.append(len(set(owners)))
        return list(zip(owners, parts, strict=True))

    flow = pipeline.input("x").flat_map("x", "part", lambda _: [0, 1, 2])
    flow = flow.map(("x", "part"), "tagged", tag, max_batch_size=12, max_delay=0.05)
    with flow.window_all("tagged", "all", list).output("all") as running:
        found = [result.table.item() for result in running.batch(range(16))]
    assert found == [[(x, part) for part in range(3)] for x in range(16)]
    assert max(mixed) > 1


def failing(xs: list[int]) -> list[Any]:
    if 3 in xs:
        raise ValueError("no threes")
    return [error_for(ErrorCode.BAD_SHAPE, "seven") if x == 7 else x for x in xs]


def short(xs: list[int]) -> list[int]:
    return [x for x in xs if x != 3]


def wrong_columns(x: int) -> Any:
    return (x, x) if x != 3 else (x,)


def no_rows(x: int) -> Any:
    return [x] if x != 3 else 3


def bad_source(x: int) -> Iterator[int]:
    yield x
    if x == 3:
        raise ValueError("no more")


BAD: list[tuple[str, Callable[[], pipeline.Pipeline], int]] = [
    ("raises", lambda: pipeline.input("x").map("x", "y", failing, max_batch_size=8).output("y"), 7),
    ("returns too few", lambda: pipeline.input("x").map("x", "y", short, max_batch_size=8).output("y"), -1),
    ("one by one", lambda: pipeline.input("x").map("x", "y", lambda x: 1 // (x - 3)).output("y"), -1),
    ("inline", lambda: pipeline.input("x").map("x", "y", lambda x: 1 // (x - 3), inline=True).output("y"), -1),
    ("too few columns", lambda: pipeline.input("x").map("x", ("y", "z"), wrong_columns).output("y"), -1),
    ("no rows", lambda: pipeline.input("x").flat_map("x", "y", no_rows).output("y"), -1),
    ("a source", lambda: pipeline.input("x").flat_map("x", "y", bad_source).map("y", "z", abs).output("z"), -1),
    ("a filter", lambda: pipeline.input("x").filter("x", lambda x: 1 // (x - 3)).output("x"), -1),
    ("a sink", lambda: pipeline.input("x").sink("x", lambda x: 1 // (x - 3)).output("x"), -1),
    ("below", lambda: pipeline.input("x").flat_map("x", "y", range).map("y", "z", lambda y: 1 // (y - 2))
        .filter("x", lambda x: x == 3).output("z"), -2),
]  # fmt: skip


@pytest.mark.parametrize(("define", "also"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_given_a_stage_that_fails_for_an_item_then_that_request_fails_and_no_other(
    define: Callable[[], pipeline.Pipeline], also: int
) -> None:
    with define() as running:
        found = codes(list(running.batch(range(10))))
    bad = set(range(3, 10)) if also == -2 else {3, also} - {-1}
    assert [number for number, code in enumerate(found) if code != "ok"] == sorted(bad)


def test_given_a_single_call_that_fails_then_the_error_of_the_function_is_its_cause() -> None:
    with pipeline.input("x").map("x", "y", lambda x: 1 // x).output("y") as running:
        with pytest.raises(RequestFailed) as failed:
            running(0)
        assert isinstance(failed.value.__cause__, ZeroDivisionError)
        assert running(1).item() == 1


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 1, "max_delay": 0.0}], ids=["one by one", "in batches"])
def test_given_a_call_that_never_ends_then_its_items_fail_and_the_stage_goes_on(options: dict[str, Any]) -> None:
    freed = threading.Event()

    def hang(x: Any) -> Any:
        if x in (3, [3]):
            freed.wait()
        return x

    try:
        with pipeline.input("x").map("x", "y", hang, timeout=0.3, **options).output("y") as running:
            found = list(running.batch(range(6)))
            assert codes(found) == ["ok"] * 3 + ["model_failed"] + ["ok"] * 2
            assert "'hang' took longer than 0.3 s" in str(found[3].error)
    finally:
        freed.set()
    wait_until(lambda: not any(one.name.startswith("hang") for one in threading.enumerate()), 5, "the thread's end")


def test_given_a_batch_call_that_is_given_up_then_nobody_waits_for_its_end_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed, told = threading.Event(), Counter[object]()

    def calling(_: object, who: object, *, begins: bool) -> None:
        if begins or who in told:  # else it is another test's, whose call ends in this one
            told[who] += 1 if begins else -1

    monkeypatch.setattr("clipfleet.pipeline.local._LocalHost.calling", calling)

    def hang(xs: list[int]) -> list[int]:
        if 3 in xs:
            freed.wait()
        return xs

    flow = pipeline.input("x").map("x", "y", hang, timeout=0.5, max_batch_size=1, max_delay=0.0)
    try:
        with flow.output("y") as running:
            assert codes(list(running.batch([3, 4]))) == ["model_failed", "ok"]
            # Told of two threads, though the first one is in its call for ever
            wait_until(lambda: len(told) > 1 and not any(told.values()), 20, f"all calls to be over: {told}")
    finally:
        freed.set()
    wait_until(lambda: not any(one.name.startswith("hang") for one in threading.enumerate()), 5, "the thread's end")


def test_given_instances_then_each_has_a_thread_and_a_copy_of_the_operator() -> None:
    opened: list[int] = []
    meet = threading.Barrier(3, timeout=20)

    @dataclass(frozen=True)
    class Meeting(BatchOperator):
        name: ClassVar[str] = "meeting"

        def open(self, place: Place) -> Opened:
            opened.append(number := len(opened))

            def run(xs: Sequence[int]) -> Sequence[int]:
                meet.wait()  # nobody passes unless three run at once
                return [number for _ in xs]

            return Opened(run)

    flow = pipeline.input("x").map("x", "by", Meeting(), instances=3, max_batch_size=1, max_delay=0.0)
    with flow.output("by") as running:
        by = Counter(result.table.item() for result in running.batch(range(9)))
    assert len(opened) == 3
    assert by == {0: 3, 1: 3, 2: 3}


@dataclass(frozen=True)
class Asking(BatchOperator):
    """Asks a store, which is always there."""

    name: ClassVar[str] = "asking"
    resource: ClassVar[str] = "store:fake"
    max_batch_size: ClassVar[int] = 1
    kind: str

    def open(self, place: Place) -> Opened:
        return Opened(lambda xs: [(self.kind, x) for x in xs])


def test_given_a_stage_of_the_store_with_instances_beside_one_without_then_neither_runs_the_others_copies() -> None:
    flow = pipeline.input("x").map("x", "y", Asking("many"), instances=3).map("y", "z", Asking("one"))
    with flow.output("z") as running:
        found = list(running.batch(range(200)))
    assert [result.table.item() for result in found] == [("one", ("many", x)) for x in range(200)]


def test_given_an_operator_that_opens_to_no_function_then_it_is_said_when_it_is_opened() -> None:
    @dataclass(frozen=True)
    class Nothing(Operator):
        name: ClassVar[str] = "nothing"

        def open(self, place: Place) -> Any:
            return None

    with pytest.raises(ValueError, match="nothing: open gave NoneType and no function"):
        pipeline.input("x").map("x", "y", Nothing()).output("y").open()


def test_given_a_slow_stage_when_a_stream_runs_through_it_then_no_more_is_read_than_there_is_room_for() -> None:
    read: list[int] = []
    gate = threading.Semaphore(0)

    def slow(x: int) -> int:
        gate.acquire()
        return x

    def source() -> Iterator[int]:
        for x in range(100):
            read.append(x)
            yield x

    with pipeline.input("x").map("x", "y", slow, instances=1).output("y") as running:
        stream = running.batch(source(), max_in_flight=5)
        for count in range(20):
            gate.release()
            assert next(stream).table.item() == count
            assert len(read) <= count + 6
        gate.release(100)
        assert len(list(stream)) == 80


def test_given_a_stream_that_nobody_reads_on_then_what_waited_is_not_run() -> None:
    ran: list[int] = []
    with pipeline.input("x").map("x", "y", ran.append, instances=1).output("y") as running:
        stream = running.batch(range(50), max_in_flight=2)
        next(stream)
        stream.close()
        running.flush()
    assert len(ran) <= 3


def test_given_notes_then_they_come_with_the_result() -> None:
    with pipeline.input("x").map("x", "y", lambda x: Noted(x, {"seen": x})).output("y") as running:
        (result,) = running.batch([4])
    assert (result.table.item(), result.notes["seen"]) == (4, 4)


def test_given_inputs_by_position_by_name_and_as_a_mapping_then_they_are_the_same() -> None:
    with pipeline.input("a", b=2).map(("a", "b"), "c", lambda a, b: (a, b)).output("c") as running:
        assert [running(1).item(), running(1, 3).item(), running(b=3, a=1).item()] == [(1, 2), (1, 3), (1, 3)]
        streamed = running.batch([{"a": 1, "b": 5}, (1, 6), {"a": {"b": 1}}])
        assert [result.table.item() for result in streamed] == [(1, 5), (1, 6), ({"b": 1}, 2)]
        with pytest.raises(TypeError, match="no input 'd'"):
            running(1, d=3)
        with pytest.raises(TypeError, match="no input 'd'"):
            list(running.batch([{"a": 1, "d": 3}]))
        with pytest.raises(RequestFailed, match="'a' is missing"):
            running(b=1)


def test_given_a_choice_then_the_input_that_is_there_chooses() -> None:
    words = pipeline.input("text").map("text", "n", len).output("n")
    numbers = pipeline.input("number").map("number", "n", abs).output("n")
    with pipeline.choice(text=words, number=numbers) as running:
        assert running(text="four").item() == 4
        assert running(number=-7).item() == 7
        with pytest.raises(RequestFailed, match="give exactly one of text, number; none given"):
            running()


def test_given_a_pipeline_that_was_closed_when_it_is_called_again_then_it_starts_again() -> None:
    running = pipeline.input("x").map("x", "y", abs).output("y")
    assert running(-1).item() == 1
    running.close()
    assert running(-2).item() == 2
    running.close()


def test_given_calls_from_many_threads_then_the_engine_is_started_once_and_each_has_its_own_answer() -> None:
    flow = pipeline.input("x").map("x", "y", lambda xs: xs, max_batch_size=16).output("y")
    wrong: list[int] = []

    def call(x: int) -> None:
        if flow(x).item() != x:
            wrong.append(x)

    threads = [threading.Thread(target=call, args=(x,)) for x in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flow.close()
    assert wrong == []
