"""Stages on a CPU: a batch on each core, and no larger than is worth it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from clipfleet import pipeline
from clipfleet.batching import BatchPolicy
from clipfleet.models.errors import OutOfMemory
from clipfleet.operators.operator import BatchOperator, Opened, Place
from clipfleet.operators.services import ProcessServices
from clipfleet.pipeline import sizing
from clipfleet.pipeline.compile import compile_pipelines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.pipeline.program import Served
    from clipfleet.pipeline.stage import BatchStage

MOST = 64


@dataclass(frozen=True)
class Alone(BatchOperator):
    """Must not be called by two threads at once, as anybody's operator."""

    name: ClassVar[str] = "alone"
    run: Callable[[Sequence[Any]], Sequence[Any]] = list

    def open(self, place: Place) -> Opened:
        return Opened(self.run)


@dataclass(frozen=True)
class Model(Alone):
    """May be."""

    name: ClassVar[str] = "model"
    concurrent: ClassVar[bool] = True

    def open(self, place: Place) -> Opened:
        return Opened(self.run, sample=1)


@dataclass(frozen=True)
class Own(Model):
    name: ClassVar[str] = "own"
    max_batch_size: ClassVar[int] = 48


def compiled(*stages: BatchOperator, calls: int = 2, device: str = "cpu", sized: bool = True, **options: Any) -> Served:
    flow = pipeline.input("x")
    for number, one in enumerate(stages):
        flow = flow.map("x", f"y{number}", one, **options)
    return compile_pipelines(
        {"p": flow.output(*(f"y{number}" for number in range(len(stages))))},
        Place(ProcessServices(model=None), device, threads=calls, calls=calls),
        BatchPolicy(MOST, 0.0),
        sized=sized,
    )


def only(served: Served) -> BatchStage:
    (stage,) = served.stages
    return stage


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose batches are worth it up to 4."""
    monkeypatch.setattr(sizing, "measured", lambda _cost, _most: {1: 5.0, 2: 8.0, 4: 15.0, 8: 30.0, 16: 60.0})


@pytest.mark.usefixtures("costs")
def test_given_a_cpu_when_nobody_said_a_size_then_batches_are_what_is_worth_it_and_one_runs_on_each_core() -> None:
    served = compiled(Model())
    stage = only(served)
    assert (stage.policy.max_batch_size, len(stage.runs), stage.resource) == (4, 2, "device:cpu")
    assert served.program("p", {"x": 1}).at_once == 8


def test_given_a_model_that_is_quickest_with_one_item_then_batches_still_have_room_for_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given runs that take as long for each item, however many there are
    monkeypatch.setattr(sizing, "measured", lambda _cost, _most: {1: 5.0, 2: 10.0, 4: 20.0, 8: 40.0})
    # Then what others do meanwhile may be all that hid what company brings
    assert only(compiled(Model())).policy.max_batch_size == 4
    # But no more than may be at all
    flow = pipeline.input("x").map("x", "y", Model()).output("y")
    place = Place(ProcessServices(model=None), "cpu", threads=2, calls=2)
    assert only(compile_pipelines({"p": flow}, place, BatchPolicy(2, 0.0), sized=True)).policy.max_batch_size == 2


@pytest.mark.usefixtures("costs")
@pytest.mark.parametrize(
    ("served", "size", "runs"),
    [
        (lambda: compiled(Model(), sized=False), MOST, 2),
        (lambda: compiled(Model(), max_batch_size=32), 32, 2),
        (lambda: compiled(Own()), 48, 2),
        (lambda: compiled(Model(), device="cuda:0"), MOST, 1),
        (lambda: compiled(Alone()), MOST, 1),
    ],
    ids=["said to the worker", "said of the stage", "said by the operator", "a GPU", "nothing to measure with"],
)
def test_given_a_size_that_was_said_or_cannot_be_known_then_it_stays(served, size, runs) -> None:
    found = served()
    stage = only(found)
    assert (stage.policy.max_batch_size, len(stage.runs)) == (size, runs)
    assert found.program("p", {"x": 1}).at_once is None


@pytest.mark.usefixtures("costs")
def test_given_instances_then_there_are_as_many_threads_and_no_more() -> None:
    assert len(only(compiled(Model(), instances=3)).runs) == 3


@pytest.mark.usefixtures("costs")
def test_given_a_timeout_then_there_is_still_a_call_on_each_core() -> None:
    stage = only(compiled(Model(), timeout=5.0))
    assert (len(stage.runs), stage.resource) == (2, "stage:model")


@pytest.mark.usefixtures("costs")
def test_given_an_operator_that_must_be_called_alone_beside_one_that_need_not_then_each_has_threads_of_its_own() -> (
    None
):
    stages = {stage.name: stage for stage in compiled(Model(), Alone()).stages}
    assert (len(stages["model"].runs), stages["model"].resource) == (2, "device:cpu")
    assert (len(stages["alone"].runs), stages["alone"].resource) == (1, "device:cpu:alone")


def test_given_a_model_when_it_is_measured_then_as_many_runs_at_once_as_there_will_be() -> None:
    meet, sizes = threading.Barrier(3, timeout=20), set()

    def run(items: Sequence[int]) -> Sequence[int]:
        sizes.add(len(items))
        meet.wait()  # nobody passes unless three run at once
        return items

    assert sizing.LEAST <= only(compiled(Model(run), calls=3)).policy.max_batch_size <= MOST
    assert {1, 2, 4} <= sizes


@pytest.mark.parametrize("error", [OutOfMemory("no room"), MemoryError(), RuntimeError("made for two")])
def test_given_a_size_that_fails_then_batches_are_smaller_and_the_worker_starts(error: Exception) -> None:
    def run(items: Sequence[int]) -> Sequence[int]:
        if len(items) > 2:
            raise error
        return items

    assert only(compiled(Model(run))).policy.max_batch_size <= 2


def test_given_a_sample_that_fails_then_the_start_does_and_says_whose_it_is() -> None:
    def run(_: Sequence[int]) -> Sequence[int]:
        raise ArithmeticError("broken")

    with pytest.raises(ValueError, match=r"^model: its sample cannot be run: ArithmeticError: broken"):
        compiled(Model(run))
