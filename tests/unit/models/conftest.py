"""The model of two linear towers that these tests run; tests/with_torch/make_tiny_bundle.py writes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from clipfleet.models import load_bundle, open_runtime
from clipfleet.models.bundle import staging

TINY = Path(__file__).parents[1] / "data" / "tiny-bundle"


@pytest.fixture(scope="session")
def tiny():
    return load_bundle(TINY)


@pytest.fixture(scope="session")
def tiny_runtime(tiny):
    opened = open_runtime(tiny)
    yield opened
    opened.close()


@pytest.fixture
def copied(tmp_path):
    target = tmp_path / "copied"
    shutil.copytree(TINY, target)
    return target


@pytest.fixture
def republish(tiny):
    def republish(folder):
        with staging(folder) as stage:
            for name in tiny.config.files:
                shutil.copy(folder / name, stage.folder)
            return stage.publish(tiny.config)

    return republish


@pytest.fixture
def edit_golden(republish):
    def edit(folder, **changes):
        with np.load(folder / "golden.npz") as file:
            arrays = {**file, **changes}
        np.savez(folder / "golden.npz", **{k: v for k, v in arrays.items() if v is not None})
        return republish(folder)

    return edit
