"""The gate of every export: the graphs must give open_clip's own vectors, alone, in company, and cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from clipfleet.models.bundle import Golden
from clipfleet.models.errors import ExportRefused
from clipfleet.models.runtime import lowest_cosine
from clipfleet.models.tokenizer import Tokenize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from clipfleet.models.config import ImageConfig
    from clipfleet.models.open_clip_source import Source
    from clipfleet.models.runtime import Runtime

__all__ = ["check_parity", "golden_of", "reference_images", "reference_texts"]

_BATCHES = (1, 3, 16)
_LEAST_COSINE = 0.9999
# Vectors of a random or collapsed model all look alike, and then any graph passes by cosine. So an error must also
# be small beside what sets the vectors apart.
_MOST_OF_SPREAD = 0.05
_ROUNDING = 1e-4
_TEXTS = (
    "a red heart",
    "a photo of a dog",
    "two cats asleep on a sofa near the window",
    "caf\u00e9",
    "\u4e00\u53ea\u72d7",
    "it's 3.14 o'clock & raining",
    "x",
    "a red bus near a blue house " * 30,
)


def reference_images(source: Source, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """open_clip's own vectors of prepared pictures: uint8 [n, H, W, 3] to float32 [n, d]."""
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (source.image.mean, source.image.std))
    # As torchvision's ToTensor and Normalize do it.
    standard = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(255) - mean) / std
    with torch.inference_mode():
        return np.asarray(source.model.encode_image(standard, normalize=True).numpy(), dtype=np.float32)


def reference_texts(source: Source, texts: Sequence[str]) -> NDArray[np.float32]:
    """open_clip's own vectors of texts, by its own tokenizer: float32 [n, d]."""
    with torch.inference_mode():
        vectors = source.model.encode_text(source.tokenizer(list(texts)), normalize=True)
    return np.asarray(vectors.numpy(), dtype=np.float32)


def check_parity(source: Source, runtime: Runtime, tokenizer_file: Path) -> float:
    """Compare the exported graphs with open_clip at several batch sizes.

    Returns:
        The lowest cosine seen.

    Raises:
        ExportRefused: a vector differs; says which tower, at which batch size, by how much.
    """
    tokenize = Tokenize(source.text, tokenizer_file)
    pixels = _pictures(source.image, max(_BATCHES))
    texts = [_TEXTS[i % len(_TEXTS)] for i in range(max(_BATCHES))]
    ids = [tokenize(text)[0] for text in texts]
    expected = {"image": reference_images(source, pixels), "text": reference_texts(source, texts)}
    lowest = 1.0
    for size in _BATCHES:
        # From the end: the short batches hold short and long texts, so that each is cut to a length of its own.
        found = {"image": runtime.encode_images(pixels[:size]), "text": runtime.encode_texts(ids[:size])}
        for tower, vectors in found.items():
            cosine = _compare(vectors, expected[tower], f"the {tower} tower at batch {size}")
            lowest = min(lowest, cosine)
    return lowest


def golden_of(source: Source, tokenizer_file: Path) -> Golden:
    """Inputs with open_clip's vectors, for each later start to compare with."""
    tokenize = Tokenize(source.text, tokenizer_file)
    pixels = _pictures(source.image, 4)
    ids = np.full((len(_TEXTS), source.text.context_length), source.text.pad_id, dtype=np.int64)
    for filled, text in zip(ids, _TEXTS, strict=True):
        row, _ = tokenize(text)
        filled[: len(row)] = row
    return Golden(
        pixels=pixels,
        image_vectors=reference_images(source, pixels),
        ids=ids,
        text_vectors=reference_texts(source, _TEXTS),
        texts=np.array(_TEXTS),
    )


def _pictures(image: ImageConfig, count: int) -> NDArray[np.uint8]:
    """Pictures of many kinds: noise, flat, gradients and stripes, the same for each model of a size."""
    height, width = image.size
    rng = np.random.default_rng(7)
    down, across = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    pictures = []
    for index in range(count):
        color, other = rng.integers(0, 256, (2, 1, 1, 3))
        ramp = [down, across, (down + across) / 2, (np.sin(across * 6 * (index + 1)) + 1) / 2][index // 2 % 4]
        smooth = color + (other - color) * ramp[..., None]
        pictures.append(rng.integers(0, 256, (height, width, 3)) if index % 2 == 0 else smooth)
    return np.stack(pictures).astype(np.uint8)


def _compare(found: NDArray[np.float32], reference: NDArray[np.float32], what: str) -> float:
    expected = reference[: len(found)]
    cosine = lowest_cosine(found, expected)
    spread = float(np.median(np.linalg.norm(reference - reference.mean(axis=0), axis=1)))
    error = float(np.max(np.linalg.norm(found - expected, axis=1)))
    # Written so that NaN fails.
    if not cosine >= _LEAST_COSINE or not error <= _MOST_OF_SPREAD * spread + _ROUNDING:
        raise ExportRefused(
            f"{what} differs from open_clip: cosine {cosine:.6f} (least {_LEAST_COSINE}), error {error:.2g} where "
            f"vectors lie {spread:.2g} apart"
        )
    return cosine
