"""Tests that need a CUDA device: ``pytest -m gpu``. They skip where there is none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from clipfleet.models import load_bundle, resolve_model
from clipfleet.models.devices import visible_gpus

HERE = Path(__file__).parent
TINY = HERE.parent / "unit" / "data" / "tiny-bundle"


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", autouse=True)
def gpus():
    found, problem = visible_gpus()
    if not found:
        pytest.skip(problem)
    return found


@pytest.fixture(scope="session", params=["tiny", "demo", "ViT-B-32/random"])
def bundle(request, gpus, tmp_path_factory):
    """A model of each size; the last one is exported here, where torch is installed."""
    if request.param == "tiny":
        return load_bundle(TINY)
    if request.param != "demo" and find_spec("open_clip") is None:
        pytest.skip("exporting needs torch and open_clip")
    return resolve_model(request.param, cache=tmp_path_factory.mktemp("cache"))
