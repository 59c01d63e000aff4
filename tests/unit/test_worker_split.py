"""How a worker process divides its cores, of what it was told and what there is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.models.runtime import Runtime
from clipfleet.pipeline.stage import BatchStage
from clipfleet.worker import assembly
from clipfleet.worker.config import MOST_BATCH, NO_MODEL, WorkerConfig
from support.fleet import TINY

if TYPE_CHECKING:
    from clipfleet.worker.assembly import Assembled


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads of the wide engines that were opened; none is."""
    opened: list[int] = []
    monkeypatch.setattr(Runtime, "open_wide", lambda _, threads: opened.append(threads))
    return opened


def assembled(monkeypatch: pytest.MonkeyPatch, cores: int, **settings: Any) -> Assembled:
    monkeypatch.setattr(assembly, "usable_cores", lambda: cores)
    return assembly.assemble(WorkerConfig(**{"model": str(TINY), **settings}), "cpu")


def tower(one: Assembled) -> BatchStage:
    (found,) = [each for each in one.served.stages if isinstance(each, BatchStage) and each.name == "clip_image"]
    return found


@pytest.mark.parametrize(
    ("cores", "settings", "calls", "alone", "decode"),
    [
        (1, {}, 1, [], 1),
        (2, {}, 2, [2], 2),
        (12, {}, 6, [12], 12),
        (4, {"processes": 2}, 2, [2], 2),
        (2, {"processes": 2}, 1, [], 1),
        (2, {"threads": 2}, 1, [], 2),
        (2, {"threads": 1, "decode_threads": 5}, 2, [], 5),
    ],
)
def test_given_cores_and_what_was_said_of_them_then_so_many_calls_run_at_once(
    monkeypatch, wide, cores, settings, calls, alone, decode
) -> None:
    made = assembled(monkeypatch, cores, **settings)
    assert len(tower(made).runs) == calls
    assert wide == alone
    assert made.decode_threads == decode
    made.served.close()


def test_given_no_size_then_it_is_measured_and_said_in_the_log(monkeypatch, wide, caplog) -> None:
    caplog.set_level(logging.INFO)
    made = assembled(monkeypatch, 2)
    size = tower(made).policy.max_batch_size
    assert 1 <= size <= MOST_BATCH
    assert f"calls at once: 2, threads of each: 1; batches of at most: clip_image {size}, clip_text " in caplog.text
    made.served.close()


@pytest.mark.parametrize("settings", [{"max_batch_size": MOST_BATCH}, {"max_batch_size": 7}, {"model": NO_MODEL}])
def test_given_a_size_or_no_model_then_nothing_is_measured(monkeypatch, wide, caplog, settings) -> None:
    caplog.set_level(logging.INFO)
    made = assembled(monkeypatch, 2, **settings)
    sizes = {stage.policy.max_batch_size for stage in made.served.stages if isinstance(stage, BatchStage)}
    assert sizes <= {settings.get("max_batch_size")}
    assert "at once" not in caplog.text
    made.served.close()
