"""``clip_image`` and ``clip_text``: the two towers of a CLIP model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clipfleet.operators._values import as_whole_pixels
from clipfleet.operators.fitting import fit
from clipfleet.operators.image import prepare_image
from clipfleet.operators.operator import BatchOperator, Noted, Opened, Place, current_item
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clipfleet.models.config import ImageConfig
    from clipfleet.models.tokenizer import Tokenize
    from clipfleet.operators.limits import ImageLimits

__all__ = ["ClipImage", "ClipText", "clip_image", "clip_text"]

CAPTION = "a photograph of a dog that runs along a beach"  # as long as captions are


@dataclass(frozen=True)
class ClipImage(BatchOperator):
    """A picture to its vector.

    Takes bytes, ``{url}``, ``{path}`` (decoded at the size that the model needs, which is quicker than ``decode``
    first) or pixels uint8 [h, w, 3] of any size; gives float32 [d] of unit length.

    Attributes:
        model: ``demo``, an open_clip name with its tag, or a bundle's directory; None: the worker's.
    """

    model: str | None = None

    name: ClassVar[str] = "clip_image"
    task: ClassVar[str] = "picture | pixels -> vector"
    of_model: ClassVar[bool] = True
    prepares: ClassVar[str] = "decode"
    concurrent: ClassVar[bool] = True

    def open(self, place: Place) -> Opened:
        """Raises ``ModelError`` where the model or the device cannot be had."""
        runtime = place.load(self.model).runtime
        config, services = runtime.bundle.config.image, place.services

        def prepare(picture: Any) -> NDArray[np.uint8]:
            if isinstance(picture, np.ndarray):
                return _fitted(picture, config, services.limits)
            encoded = services.fetcher.fetch(picture, timeout_s=current_item().left_s)
            return prepare_image(encoded, config, services.limits)

        grey = np.full((*config.size, 3), 127, dtype=np.uint8)
        return Opened(lambda pixels: _rows(runtime.encode_images(np.stack(pixels))), prepare, sample=grey)


@dataclass(frozen=True)
class ClipText(BatchOperator):
    """A text to its vector, float32 [d] of unit length; notes ``truncated`` when the model reads only its beginning.

    Attributes:
        model: as of ``ClipImage``.
    """

    model: str | None = None

    name: ClassVar[str] = "clip_text"
    task: ClassVar[str] = "text -> vector"
    of_model: ClassVar[bool] = True
    prepares: ClassVar[str] = "tokenize"
    concurrent: ClassVar[bool] = True

    def open(self, place: Place) -> Opened:
        """Raises ``ModelError`` where the model or the device cannot be had."""
        loaded = place.load(self.model)
        tokens = functools.partial(_tokens, loaded.tokenize)
        return Opened(
            lambda ids: _rows(loaded.runtime.encode_texts(ids)), tokens, chunk=16, sample=loaded.tokenize(CAPTION)[0]
        )


def _tokens(tokenize: Tokenize, text: str) -> Any:
    ids, truncated = tokenize(text)
    return Noted(ids, {"truncated": True}) if truncated else ids


def _fitted(pixels: NDArray[Any], config: ImageConfig, limits: ImageLimits) -> NDArray[np.uint8]:
    as_whole_pixels(pixels, limits)
    from PIL import Image  # noqa: PLC0415  (whoever sends encoded pictures has it by then)

    return np.asarray(fit(Image.fromarray(np.ascontiguousarray(pixels)), config))


def _rows(vectors: NDArray[np.float32]) -> Sequence[NDArray[np.float32] | RequestFailed]:
    """One vector per item; a row that is not finite fails its own item and no other."""
    finite = np.isfinite(vectors).all(axis=-1)
    return [
        row if good else error_for(ErrorCode.MODEL_FAILED, "the model gave a vector that is not finite")
        for row, good in zip(vectors, np.atleast_1d(finite), strict=True)
    ]


clip_image = ClipImage
clip_text = ClipText
