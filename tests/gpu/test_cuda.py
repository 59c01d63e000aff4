"""On a GPU the same vectors as on the CPU, out-of-memory as a batch's own verdict, and every GPU by itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest

from clipfleet.models import (
    DeviceUnavailable,
    OutOfMemory,
    Tokenize,
    choose_devices,
    list_devices,
    open_runtime,
)
from clipfleet.models.runtime import lowest_cosine

WORDS = [
    "a",
    "red",
    "heart",
    "and",
    "two",
    "dogs",
    "under",
    "the",
    "blue",
    "moon",
    "of",
    "a",
    "very",
    "cold",
    "winter",
    "night",
]


def inputs(bundle, count):
    rng = np.random.default_rng(count)
    pixels = rng.integers(0, 256, (count, *bundle.config.image.size, 3), dtype=np.uint8)
    tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
    texts = [" ".join(WORDS[: 1 + index % len(WORDS)]) for index in range(count)]
    return pixels, [tokenize(text)[0] for text in texts]


@pytest.fixture(params=["cuda", "tensorrt", "torch"])
def on_gpu(request, bundle):
    """Each provider that this machine has; CUDA itself must be there."""
    try:
        opened = open_runtime(bundle, device="cuda:0", providers=[request.param])
    except DeviceUnavailable as error:
        if request.param == "cuda":
            raise
        pytest.skip(str(error))
    yield opened
    opened.close()


@pytest.mark.parametrize("count", [1, 64])
def test_given_a_batch_when_run_on_the_gpu_then_the_cpu_s_vectors(bundle, on_gpu, count) -> None:
    pixels, ids = inputs(bundle, count)
    on_cpu = open_runtime(bundle, device="cpu", providers=["cpu"])

    assert on_gpu.device == "cuda:0"
    assert lowest_cosine(on_gpu.encode_images(pixels), on_cpu.encode_images(pixels)) >= 0.999
    assert lowest_cosine(on_gpu.encode_texts(ids), on_cpu.encode_texts(ids)) >= 0.999


def test_given_an_item_alone_and_among_63_others_on_the_gpu_then_the_same_vector(bundle, on_gpu) -> None:
    pixels, ids = inputs(bundle, 64)

    alone = np.concatenate([on_gpu.encode_images(pixels[i : i + 1]) for i in range(64)])
    assert lowest_cosine(on_gpu.encode_images(pixels), alone) >= 0.999
    alone = np.concatenate([on_gpu.encode_texts([row]) for row in ids])
    assert lowest_cosine(on_gpu.encode_texts(ids), alone) >= 0.999


def test_given_no_room_for_a_batch_when_halved_then_it_passes_with_the_same_vectors(bundle) -> None:
    opened = open_runtime(bundle, device="cuda:0", providers=["cuda"])
    height, width = bundle.config.image.size
    # About 4 GB of pixels as floats, where 512 MB are left.
    pixels = np.zeros((4_000_000_000 // (height * width * 12), height, width, 3), dtype=np.uint8)
    size, refused = len(pixels), 0
    with all_memory_but(512 << 20):
        while True:
            try:
                vectors = opened.encode_images(pixels[:size])
            except OutOfMemory:
                refused += 1
                size //= 2
            else:
                break

    assert refused
    assert size
    assert lowest_cosine(vectors, np.repeat(vectors[:1], len(vectors), axis=0)) >= 0.999
    assert opened.provider == "cuda"


@contextmanager
def all_memory_but(left):
    """Hold the first GPU's free memory in this process, except for so many bytes."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device, pointer = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(free.value - left)) == 0
    try:
        yield
    finally:
        cuda.cuMemFree_v2(pointer)
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def test_given_auto_then_every_visible_gpu(gpus) -> None:
    choice = choose_devices("auto")

    assert choice.devices == list_devices("cuda") == gpus
    assert gpus[0] in choice.why


def test_given_gpus_hidden_by_the_environment_then_the_cpu_and_an_error_for_a_name() -> None:
    code = """
from clipfleet.models import DeviceUnavailable, list_devices
print(list_devices("auto"))
try:
    list_devices("cuda:0")
except DeviceUnavailable as error:
    print(error)
"""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=hidden)

    first, second = answer.stdout.splitlines()
    assert first == "['cpu']"
    assert second.startswith("cuda:0 is not on this machine")


def test_given_a_gpu_that_is_not_there_then_refused(gpus) -> None:
    with pytest.raises(DeviceUnavailable, match=f"visible are {gpus[0]}"):
        list_devices(f"cuda:{len(gpus)}")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_given_torch_when_devices_are_listed_then_it_was_not_imported() -> None:
    code = "import sys; from clipfleet.models import list_devices; list_devices(); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "False"
