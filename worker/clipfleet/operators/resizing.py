"""``resize``: pixels of any size to pixels of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
from PIL import Image

from clipfleet.models.config import ImageConfig, Interpolation, ResizeMode
from clipfleet.operators._values import as_whole_pixels, whole_size
from clipfleet.operators.fitting import fit
from clipfleet.operators.operator import Operator, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Resize"]


@dataclass(frozen=True)
class Resize(Operator):
    """Bring a picture to one size, antialiased, as open_clip does before its models.

    ``clip_image`` does this for its own model; this is for operators that do not.

    Attributes:
        size: side in pixels, or (height, width).
        mode: ``shortest`` scales the shorter side and crops the centre, ``squash`` ignores the proportions,
            ``longest`` scales the longer side and pads.
        interpolation: ``bicubic`` or ``bilinear``.
        fill: the padding of ``longest``, RGB 0 to 255.
    """

    name = "resize"
    task = "pixels -> pixels"

    size: int | tuple[int, int]
    mode: ResizeMode = "shortest"
    interpolation: Interpolation = "bicubic"
    fill: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole_size(self.size, "size"))
        object.__setattr__(self, "fill", tuple(self.fill))
        for what, given, known in (
            ("mode", self.mode, ResizeMode),
            ("interpolation", self.interpolation, Interpolation),
        ):
            if given not in get_args(known):
                raise ValueError(f"{what} is one of {', '.join(get_args(known))}, not {given!r}")
        if [part for part in self.fill if not 0 <= part <= 255] or len(tuple(self.fill)) != 3:
            raise ValueError(f"fill is three numbers from 0 to 255, not {self.fill!r}")

    def open(self, place: Place) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]:
        """uint8 [h, w, 3] to uint8 [height, width, 3].

        The function raises ``bad_shape`` for what is no picture, and for a sliver (``ImageLimits.max_aspect``): scaled
        by its shorter side it would be larger than any picture that is decoded.
        """
        # Mean and std are the exported graph's business.
        config = ImageConfig(
            whole_size(self.size, "size"), self.mode, self.interpolation, self.fill, (0, 0, 0), (1, 1, 1)
        )
        limits = place.services.limits

        def resize(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
            as_whole_pixels(pixels, limits)
            return np.asarray(fit(Image.fromarray(np.ascontiguousarray(pixels)), config))

        return resize


resize = Resize
