"""The model file and the decoding that every server of the comparison shares; imported in their environments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.models import load_bundle, open_runtime
from clipfleet.operators.image import prepare_image

if TYPE_CHECKING:
    from collections.abc import Sequence

# Told by the benchmark: the bundle's directory, the port on 127.0.0.1, and how each of them batches.
BUNDLE, PORT = os.environ.get("BENCH_BUNDLE", ""), int(os.environ.get("BENCH_PORT", "0"))
PROCESSES = int(os.environ.get("BENCH_PROCESSES", "1"))
MAX_BATCH, MAX_DELAY_S = 16, 0.01
TIMEOUT_S = 120
MEDIA = "application/octet-stream"


class Decoder:
    """Encoded bytes to uint8 [H, W, 3], as the model takes it."""

    def __init__(self) -> None:
        self._image = load_bundle(Path(BUNDLE)).config.image

    def __call__(self, data: bytes) -> Any:
        return prepare_image(data, self._image)


class Model:
    """Prepared pictures to float32 [n, d], on one thread: there are as many processes as cores."""

    def __init__(self) -> None:
        self._runtime = open_runtime(load_bundle(Path(BUNDLE)), providers=["cpu"], threads=1)

    def __call__(self, pixels: Sequence[Any]) -> Any:
        return self._runtime.encode_images(np.stack(pixels))
