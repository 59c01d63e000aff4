"""The pictures that benchmarks send."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def jpeg(seed: int) -> bytes:
    """A smooth picture of 640 x 480, as a camera's JPEG weighs it."""
    small = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()
