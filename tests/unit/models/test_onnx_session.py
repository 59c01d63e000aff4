"""Any ONNX file: opened where it was asked to run, or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from clipfleet.models import (
    BadBundle,
    DeviceUnavailable,
    ModelError,
    ModelNotFound,
    OutOfMemory,
    onnx_runtime,
    onnx_session,
    open_session,
)

BLOBS = Path(__file__).parents[1] / "data" / "blobs-v8.onnx"
TEXTS = Path(__file__).parents[1] / "data" / "tiny-bundle" / "text.onnx"


def test_given_a_file_when_opened_then_its_ports_names_and_hash_are_known():
    session = open_session(BLOBS)
    (taken,), (given,) = session.inputs, session.outputs
    assert (taken.name, taken.shape, taken.dtype) == ("images", (None, 3, 128, 128), np.float32)
    assert (given.name, given.shape) == ("found", (None, 7, 256))
    assert session.metadata["names"] == "{0: 'red', 1: 'green', 2: 'blue'}"
    assert session.fingerprint == hashlib.sha256(BLOBS.read_bytes()).hexdigest()
    assert session.provider == "cpu"
    assert [each.provider for each in session.tried] == ["tensorrt", "cuda", "cpu"]
    assert open_session(TEXTS).inputs[0].dtype == np.int64


def test_given_a_session_when_run_then_all_outputs_come_and_after_closing_none():
    session = open_session(BLOBS, providers=("cpu",))
    (found,) = session.run(np.ones((2, 3, 128, 128), np.float32))
    assert found.shape == (2, 7, 256)
    session.close()
    session.close()
    with pytest.raises(ModelError, match="closed"):
        session.run(np.ones((1, 3, 128, 128), np.float32))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"providers": ("torch",)}, DeviceUnavailable, "torch: it runs no ONNX files"),
        ({"providers": ("cuda",)}, DeviceUnavailable, "it does not run on cpu"),
        ({"device": "cuda:0", "providers": ("cpu",)}, DeviceUnavailable, "it does not run on cuda"),
        ({"providers": ()}, DeviceUnavailable, "No provider was named"),
        ({"providers": ("gpu",)}, ModelError, "unknown provider 'gpu'"),
        ({"device": "gpu"}, ModelError, "cpu or cuda:N"),
    ],
    ids=str,
)
def test_given_what_cannot_run_it_then_it_is_said_and_nothing_else_is_taken(options, error, text):
    with pytest.raises(error, match=text):
        open_session(BLOBS, **options)


def test_given_no_file_or_no_graph_then_it_is_said(tmp_path):
    with pytest.raises(ModelNotFound, match="No such file"):
        open_session(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no graph")
    with pytest.raises(DeviceUnavailable, match=r"cannot load text\.onnx"):
        open_session(tmp_path / "text.onnx")


class OnGpu:
    """A session as a GPU's would be: the CPU's, its outputs changed by ``spoil``."""

    def __init__(self, session, spoil):
        self._session, self._spoil = session, spoil

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run(self, names, inputs):
        return [self._spoil(output) for output in self._session.run(names, inputs)]


@pytest.fixture
def gpu(monkeypatch):
    """Make a GPU of the CPU, its outputs changed by what is given."""
    real = onnx_runtime.open_graph

    def install(spoil):
        def open_graph(graph, fingerprint, *, provider, device, threads):
            session = real(graph, fingerprint, provider="cpu", device="cpu", threads=threads)
            return session if provider == "cpu" else OnGpu(session, spoil)

        monkeypatch.setattr(onnx_runtime, "open_graph", open_graph)

    return install


def test_given_a_gpu_that_agrees_with_the_cpu_then_it_is_taken(gpu):
    gpu(lambda output: output * np.float32(1.001))
    session = open_session(BLOBS, device="cuda:0")
    assert (session.device, session.provider) == ("cuda:0", "tensorrt")


@pytest.mark.parametrize(
    "spoil", [np.zeros_like, lambda output: output * np.nan, lambda output: -output, lambda output: output[:, :-1]]
)
def test_given_a_gpu_that_gives_something_else_then_it_is_refused_with_both_reasons(gpu, spoil):
    gpu(spoil)
    with pytest.raises(BadBundle, match=r"tensorrt: output found differs .*; cuda: output found differs"):
        open_session(BLOBS, device="cuda:0", providers=("tensorrt", "cuda"))


def test_given_no_room_on_the_device_then_it_is_the_batchs_own_verdict(monkeypatch):
    session = open_session(BLOBS)

    class Full:
        def run(self, *_):
            raise RuntimeError("Failed to allocate memory for requested buffer of size 1")

    monkeypatch.setattr(session, "_session", Full())
    with pytest.raises(OutOfMemory, match="no room for a batch of 3"):
        session.run(np.ones((3, 3, 128, 128), np.float32))


def test_given_free_axes_then_the_made_up_input_has_the_asked_size_and_its_dtypes_range():
    floats = onnx_session._made_up(onnx_session.Port("x", (None, 3, None, 5), np.dtype(np.float32)), 7)
    assert floats.shape == (1, 3, 7, 5)
    assert 0 <= floats.min() < floats.max() <= 1
    whole = onnx_session._made_up(onnx_session.Port("x", (2, 4), np.dtype(np.uint8)), 7)
    assert (whole.shape, whole.dtype) == ((2, 4), np.uint8)
    assert whole.max() > 1
