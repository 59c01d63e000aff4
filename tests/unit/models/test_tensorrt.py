"""TensorRT where there is none: said plainly; where its engines are kept, by model and driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clipfleet.models import DeviceUnavailable, build_engines
from clipfleet.models.library import cache_directory
from clipfleet.models.onnx_runtime import engine_directory

if TYPE_CHECKING:
    from pathlib import Path

    from clipfleet.models import Bundle

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: gcc 12.2.0\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"


@pytest.mark.parametrize(
    ("text", "driver"), [(OPEN, "570.86.15"), (CLOSED, "550.54.15"), ("something else", "unknown"), (None, "unknown")]
)
def test_given_a_driver_then_engines_are_kept_apart_by_it(tmp_path: Path, text: str | None, driver: str) -> None:
    version = tmp_path / "version"
    if text is not None:
        version.write_text(text)
    expected = cache_directory() / "tensorrt" / ("f" * 16) / f"driver-{driver}"
    assert engine_directory("f" * 64, version) == expected


def test_given_no_gpu_when_engines_are_asked_for_then_what_is_missing_is_named(tiny: Bundle) -> None:
    with pytest.raises(DeviceUnavailable, match="tensorrt"):
        build_engines(tiny)
