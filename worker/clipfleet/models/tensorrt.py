"""Building TensorRT's engines ahead of a worker's start, which would otherwise wait for minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clipfleet.models.onnx_runtime import engine_directory
from clipfleet.models.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clipfleet.models.bundle import Bundle

__all__ = ["build_engines"]


def build_engines(bundle: Bundle, *, device: str = "cuda:0", batch_sizes: Sequence[int] = (1, 64)) -> Path:
    """Have TensorRT build the engines of a model, check them on the golden inputs, and keep them.

    An engine is good for one model, one driver and one kind of GPU: build it where it will run.

    Args:
        bundle: the model.
        device: ``cuda:N``.
        batch_sizes: the batches that the engines shall be ready for, pictures and texts of the model's full length.

    Returns:
        The folder they are kept in; workers find them there by themselves.

    Raises:
        DeviceUnavailable: TensorRT, or the GPU, cannot be had; the text says what is missing.
        BadBundle: its vectors are not the source model's.
    """
    runtime = open_runtime(bundle, device=device, providers=("tensorrt",))
    try:
        height, width = bundle.config.image.size
        for count in batch_sizes:
            runtime.encode_images(np.zeros((count, height, width, 3), dtype=np.uint8))
            runtime.encode_texts([np.ones(bundle.config.text.context_length, dtype=np.int64)] * count)
    finally:
        runtime.close()
    return engine_directory(bundle.config.fingerprint)
