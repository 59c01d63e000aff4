"""``torch-bf16`` rounds weights: it is taken where it is named, and never instead of something else."""

from __future__ import annotations

import pytest

from clipfleet.models import PROVIDERS, DeviceUnavailable, ModelError, load_bundle, open_runtime, open_session
from clipfleet.operators.operator import StageOptions
from clipfleet.worker import WorkerConfig
from support.fleet import TINY


def test_given_nobody_names_a_provider_then_no_weights_are_rounded() -> None:
    assert "torch-bf16" not in PROVIDERS
    assert "torch-bf16" not in WorkerConfig().providers


def test_given_a_stage_that_names_bf16_then_taken_as_it_is() -> None:
    assert StageOptions(providers=("torch-bf16",)).providers == ("torch-bf16",)
    with pytest.raises(ValueError, match="torch-bf16"):
        StageOptions(providers=("bf16",))


def test_given_a_model_that_torch_cannot_build_when_bf16_is_asked_for_then_refused_and_nothing_else_taken() -> None:
    with pytest.raises(DeviceUnavailable, match="torch-bf16"):
        open_runtime(load_bundle(TINY), providers=["torch-bf16"])


def test_given_an_onnx_file_when_bf16_is_asked_for_then_it_runs_none() -> None:
    with pytest.raises(DeviceUnavailable, match="runs no ONNX files"):
        open_session(TINY / "image.onnx", providers=["torch-bf16"])


def test_given_an_unknown_precision_then_the_known_ones_are_named() -> None:
    with pytest.raises(ModelError, match="torch-bf16"):
        open_runtime(load_bundle(TINY), providers=["torch-fp16"])
