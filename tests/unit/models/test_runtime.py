"""A model runs on the device that was asked for, agrees with its source, or says why not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from clipfleet.models import (
    Attempt,
    BadBundle,
    DeviceUnavailable,
    ModelError,
    OutOfMemory,
    Tokenize,
    load_bundle,
    onnx_runtime,
    open_runtime,
    runtime,
)
from clipfleet.schemas.errors import BadInput, ErrorCode, ModelFailed


def test_given_the_cpu_when_opened_then_it_agrees_with_the_source_and_says_what_it_tried(tiny_runtime) -> None:
    golden = tiny_runtime.bundle.golden()

    np.testing.assert_allclose(tiny_runtime.encode_images(golden.pixels), golden.image_vectors, atol=1e-5)
    np.testing.assert_allclose(tiny_runtime.encode_texts(list(golden.ids)), golden.text_vectors, atol=1e-5)
    assert tiny_runtime.provider == "cpu"
    assert [attempt.provider for attempt in tiny_runtime.tried] == ["tensorrt", "cuda", "cpu"]
    assert tiny_runtime.tried[-1] == Attempt("cpu")


def test_given_an_item_alone_and_in_a_batch_of_64_then_the_same_vector(tiny, tiny_runtime) -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (64, 8, 6, 3), dtype=np.uint8)
    tokenize = Tokenize(tiny.config.text, tiny.tokenizer_file)
    ids = [tokenize("red cat dog " * (1 + i % 4))[0] for i in range(64)]

    for batch, alone in (
        (tiny_runtime.encode_images(pixels), [tiny_runtime.encode_images(pixels[i : i + 1]) for i in range(64)]),
        (tiny_runtime.encode_texts(ids), [tiny_runtime.encode_texts([row]) for row in ids]),
    ):
        assert runtime.lowest_cosine(batch, np.concatenate(alone)) >= 0.99999
        np.testing.assert_allclose(np.linalg.norm(batch, axis=1), 1, atol=1e-5)


def test_given_no_items_then_no_vectors(tiny_runtime) -> None:
    assert tiny_runtime.encode_texts([]).shape == (0, 16)
    assert tiny_runtime.encode_images(np.empty((0, 8, 6, 3), np.uint8)).shape == (0, 16)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((1, 6, 8, 3), np.uint8),
        np.zeros((8, 6, 3), np.uint8),
        np.zeros((1, 8, 6, 3), np.float32),
        np.zeros((1, 8, 6, 4), np.uint8),
    ],
)
def test_given_pixels_of_another_shape_then_bad_shape(tiny_runtime, pixels) -> None:
    with pytest.raises(BadInput) as caught:
        tiny_runtime.encode_images(pixels)
    assert caught.value.code is ErrorCode.BAD_SHAPE


@pytest.mark.parametrize("row", [np.zeros(0, np.int64), np.zeros(13, np.int64), np.zeros((1, 4), np.int64)])
def test_given_ids_of_another_shape_then_bad_shape(tiny_runtime, row) -> None:
    with pytest.raises(BadInput) as caught:
        tiny_runtime.encode_texts([np.ones(3, np.int64), row])
    assert caught.value.code is ErrorCode.BAD_SHAPE


def test_given_a_closed_runtime_when_called_then_it_says_so(tiny) -> None:
    opened = open_runtime(tiny)
    opened.close()
    opened.close()

    with pytest.raises(ModelError, match="closed"):
        opened.encode_texts([np.ones(3, np.int64)])


class FakeEngine:
    """Answers with what it was given; records the batches it saw."""

    def __init__(self, answer):
        self.answer = answer
        self.closed = False
        self.seen = []

    def images(self, pixels):
        return self.answer(pixels)

    def texts(self, ids):
        self.seen.append(ids.shape)
        return self.answer(ids)

    def close(self):
        self.closed = True


def runtime_with(tiny, answer, device="cpu"):
    return runtime.Runtime(tiny, FakeEngine(answer), device, (Attempt("cpu"),))


def test_given_a_wide_engine_when_calls_run_at_once_then_only_the_one_that_began_alone_has_it(
    tiny, monkeypatch
) -> None:
    wide, narrow = [
        FakeEngine(lambda batch: np.ones((len(batch), tiny.config.dimension), np.float32)) for _ in range(2)
    ]
    opened = runtime.Runtime(tiny, narrow, "cpu", (Attempt("cpu"),))
    monkeypatch.setattr(runtime, "_load", lambda *_: wide)
    monkeypatch.setattr(runtime, "_check_golden", lambda *_: None)
    ids = [np.ones(3, np.int64)]
    # Given one that is called by itself, before and after there is a wide engine
    opened.encode_texts(ids)
    opened.open_wide(8)
    opened.encode_texts(ids)
    assert (len(narrow.seen), len(wide.seen)) == (1, 1)

    # When another call comes while it runs
    def answer(batch):
        wide.answer = lambda batch: np.ones((len(batch), tiny.config.dimension), np.float32)
        opened.encode_texts(ids)
        opened.encode_texts(ids)
        return wide.answer(batch)

    wide.answer = answer
    opened.encode_texts(ids)
    # Then those beside it have the narrow one, and the next that comes alone the wide one again
    assert (len(narrow.seen), len(wide.seen)) == (3, 2)
    wide.answer = failing
    with pytest.raises(ZeroDivisionError):
        opened.encode_texts(ids)
    opened.encode_texts(ids[:0])
    with pytest.raises(ZeroDivisionError):
        opened.encode_texts(ids)
    assert len(wide.seen) == 4
    opened.close()
    assert (wide.closed, narrow.closed) == (True, True)


def failing(_):
    raise ZeroDivisionError


@pytest.mark.parametrize(("device", "provider"), [("cuda:0", "cuda"), ("cpu", "torch-bf16")])
def test_given_a_gpu_or_torch_then_nothing_is_loaded_twice(tiny, monkeypatch, device, provider) -> None:
    monkeypatch.setattr(runtime, "_load", None)
    opened = runtime.Runtime(tiny, FakeEngine(len), device, (Attempt(provider),))
    opened.open_wide(8)


def test_given_a_wide_engine_then_it_gives_the_same_vectors(tiny) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, *tiny.config.image.size, 3), dtype=np.uint8)
    opened = open_runtime(tiny)
    expected = opened.encode_images(pixels)
    opened.open_wide(2)
    assert opened.encode_images(pixels) == pytest.approx(expected, abs=1e-6)
    opened.close()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 12"),
        RuntimeError("Available memory of 5 is smaller than requested bytes of 9"),
        RuntimeError("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_given_a_runtime_s_words_for_no_memory_when_called_then_out_of_memory(tiny, error) -> None:
    def raises(_):
        raise error

    with pytest.raises(OutOfMemory, match="batch of 2"):
        runtime_with(tiny, raises).encode_images(np.zeros((2, 8, 6, 3), np.uint8))


def test_given_another_error_of_the_engine_when_called_then_it_stays_what_it_is(tiny) -> None:
    def raises(_):
        raise ValueError("odd input")

    with pytest.raises(ValueError, match="odd input"):
        runtime_with(tiny, raises).encode_images(np.zeros((2, 8, 6, 3), np.uint8))


def test_given_too_few_vectors_when_called_then_model_failed(tiny) -> None:
    short = runtime_with(tiny, lambda batch: np.zeros((len(batch) - 1, 16), np.float32))

    with pytest.raises(ModelFailed):
        short.encode_images(np.zeros((2, 8, 6, 3), np.uint8))


@pytest.mark.parametrize(("device", "padded"), [("cpu", (2, 5)), ("cuda:0", (2, 8))])
def test_given_texts_of_several_lengths_then_a_batch_is_no_longer_than_needed(tiny, device, padded) -> None:
    opened = runtime_with(tiny, lambda batch: np.zeros((len(batch), 16), np.float32), device)

    opened.encode_texts([np.ones(3, np.int64), np.ones(5, np.int64)])
    opened.encode_texts([np.ones(11, np.int64)])

    assert opened._engine.seen == [padded, (1, 11 if device == "cpu" else 12)]


def test_given_real_memory_running_out_when_called_then_half_the_batch_still_passes(tiny) -> None:
    code = f"""
import resource, numpy as np
from clipfleet.models import OutOfMemory, load_bundle, open_runtime
opened = open_runtime(load_bundle({str(tiny.path)!r}))
batch = np.zeros((1_500_000, 8, 6, 3), np.uint8)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 500_000_000, resource.RLIM_INFINITY))
try:
    opened.encode_images(batch)
except OutOfMemory as error:
    print(error)
print(opened.encode_images(batch[:64]).shape)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert answer.stdout.splitlines() == ["cpu had no room for a batch of 1500000", "(64, 16)"], answer.stderr


def test_given_cuda_by_name_and_none_here_then_refused_naming_what_is_missing(tiny) -> None:
    with pytest.raises(DeviceUnavailable, match=r"CUDAExecutionProvider|clipfleet\[gpu\]"):
        open_runtime(tiny, device="cuda:7", providers=["cuda"])
    with pytest.raises(DeviceUnavailable, match="cuda: it does not run on cpu"):
        open_runtime(tiny, device="cpu", providers=["cuda"])
    with pytest.raises(DeviceUnavailable, match="cpu: it does not run on cuda:0"):
        open_runtime(tiny, device="cuda:0", providers=["cpu"])


@pytest.mark.parametrize(("device", "providers"), [("gpu", ["cpu"]), ("cuda", ["cuda"]), ("cpu", ["openvino"])])
def test_given_an_unknown_name_of_device_or_provider_then_model_error(tiny, device, providers) -> None:
    with pytest.raises(ModelError):
        open_runtime(tiny, device=device, providers=providers)


def test_given_a_session_that_quietly_took_the_cpu_then_device_unavailable() -> None:
    class Session:
        def get_providers(self):
            return ["CPUExecutionProvider"]

    with pytest.raises(DeviceUnavailable, match="could not start CUDAExecutionProvider"):
        onnx_runtime._require_taken(Session(), ("CUDAExecutionProvider", {}))


def test_given_a_session_when_it_fails_later_then_it_may_not_move_to_the_cpu(tiny_runtime) -> None:
    sessions = vars(tiny_runtime._engine).values()

    assert [session._enable_fallback for session in sessions] == [False, False]


def test_given_both_onnxruntimes_installed_over_each_other_then_named(tiny, monkeypatch) -> None:
    monkeypatch.setattr(onnx_runtime.metadata, "version", lambda _: "1.32.0")

    assert set(onnx_runtime.installed_runtimes()) == {"onnxruntime", "onnxruntime-gpu"}
    with pytest.raises(DeviceUnavailable, match="installed over each other"):
        open_runtime(tiny, device="cuda:0", providers=["cuda"])


@pytest.mark.parametrize("which", ["image_vectors", "text_vectors"])
def test_given_vectors_unlike_the_golden_ones_then_the_provider_is_refused(copied, edit_golden, which) -> None:
    with np.load(copied / "golden.npz") as file:
        changed = file[which].copy()
    changed[1] = changed[0]
    edit_golden(copied, **{which: changed})

    with pytest.raises(BadBundle, match="gave other vectors than the source model"):
        open_runtime(load_bundle(copied), providers=["cpu"])


def test_given_vectors_that_are_no_numbers_then_the_provider_is_refused(tiny, monkeypatch) -> None:
    broken = FakeEngine(lambda batch: np.full((len(batch), 16), np.nan, np.float32))
    monkeypatch.setattr(runtime, "_load", lambda *_: broken)

    with pytest.raises(BadBundle, match="cosine nan"):
        open_runtime(tiny, providers=["cpu"])
    assert broken.closed


def test_given_the_first_provider_disagrees_then_the_next_is_taken_and_the_reason_kept(tiny, monkeypatch) -> None:
    real = runtime._load
    broken = FakeEngine(lambda batch: np.ones((len(batch), 16), np.float32))
    monkeypatch.setattr(runtime, "_load", lambda name, *rest: broken if name == "torch" else real(name, *rest))

    opened = open_runtime(tiny, providers=["torch", "cpu"])

    assert opened.provider == "cpu"
    assert [attempt.provider for attempt in opened.tried] == ["torch", "cpu"]
    assert "other vectors" in opened.tried[0].reason
    assert broken.closed


def test_given_a_graph_that_fails_on_the_golden_inputs_then_the_provider_is_refused(tiny, monkeypatch) -> None:
    def raises(_):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(runtime, "_load", lambda *_: FakeEngine(raises))

    with pytest.raises(BadBundle, match="no kernel image"):
        open_runtime(tiny, providers=["cpu"])


def test_given_a_file_that_is_no_graph_then_the_reason_names_it(copied, republish) -> None:
    (copied / "image.onnx").write_bytes(b"no graph")
    republish(copied)

    with pytest.raises(DeviceUnavailable, match=r"cannot load image\.onnx"):
        open_runtime(load_bundle(copied), providers=["cpu"])


def test_onnx_runtime_is_told_not_to_report_home() -> None:
    # In a process of its own: the variable counts when the library is loaded.
    code = (
        "import os; os.environ.pop('ORT_DISABLE_TELEMETRY', None)\n"
        "from clipfleet.models import open_runtime, resolve_model\n"
        "open_runtime(resolve_model('demo')).close()\n"
        "assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
