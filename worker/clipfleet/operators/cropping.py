"""``crop`` and ``tiles``: parts of a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.operators._values import as_box, as_pixels, whole_edges, whole_size
from clipfleet.operators.operator import Operator, Place
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from clipfleet.operators._values import Box

__all__ = ["Crop", "Tiles"]


@dataclass(frozen=True)
class Crop(Operator):
    """Cut a box out of a picture, as ``detect`` and ``tiles`` give it.

    Edges are rounded to the nearest pixel, and what lies outside of the picture is left out.
    """

    name = "crop"
    task = "pixels, box -> pixels"

    def open(self, place: Place) -> Callable[..., Any]:  # noqa: ARG002  it needs nothing of it
        """(uint8 [h, w, 3], (x0, y0, x1, y1)) to uint8 [h', w', 3].

        The function raises ``bad_shape`` when there is no picture, no box, or nothing in it.
        """
        return _crop


@dataclass(frozen=True)
class Tiles(Operator):
    """Cut a picture into tiles of one size that cover all of it; for ``flat_map``.

    The last tile of a row or column ends at the border, so it may overlap the one before more than ``stride`` says. A
    picture that is smaller than a tile is one tile, of its own size.

    Attributes:
        size: side of a tile in pixels, or (height, width).
        stride: from one tile to the next, or (down, right); None: as ``size``, so that they do not overlap.
        most: of one picture; it fails with ``bad_shape`` if it needs more.
    """

    name = "tiles"
    task = "pixels -> many (pixels, box)"

    size: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None
    most: int = 4096

    def __post_init__(self) -> None:
        size = whole_size(self.size, "size")
        stride = size if self.stride is None else whole_size(self.stride, "stride")
        if stride[0] > size[0] or stride[1] > size[1]:
            raise ValueError(f"a stride of {stride} leaves gaps between tiles of {size}")
        if self.most < 1:
            raise ValueError("most must be at least 1")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "stride", stride)

    def open(self, place: Place) -> Callable[..., Any]:  # noqa: ARG002  it needs nothing of it
        """Uint8 [h, w, 3] to an iterator of (uint8 [height, width, 3], (x0, y0, x1, y1)), row by row."""
        size, stride = whole_size(self.size, "size"), whole_size(self.stride or self.size, "stride")

        def tiles(pixels: NDArray[np.uint8]) -> Iterator[tuple[NDArray[np.uint8], Box]]:
            height, width = as_pixels(pixels).shape[:2]
            tops, lefts = (
                _starts(whole, part, step) for whole, part, step in zip((height, width), size, stride, strict=True)
            )
            if len(tops) * len(lefts) > self.most:
                raise error_for(
                    ErrorCode.BAD_SHAPE,
                    f"{width} x {height} pixels would be {len(tops) * len(lefts)} tiles; at most {self.most} are cut",
                )
            high, wide = min(size[0], height), min(size[1], width)
            return (
                (
                    np.ascontiguousarray(pixels[top : top + high, left : left + wide]),
                    (float(left), float(top), float(left + wide), float(top + high)),
                )
                for top in tops
                for left in lefts
            )

        return tiles


def _crop(pixels: NDArray[np.uint8], box: Any) -> NDArray[np.uint8]:
    height, width = as_pixels(pixels).shape[:2]
    x0, y0, x1, y1 = as_box(box)
    left, top, right, bottom = whole_edges((x0, y0, x1, y1), height, width)
    if left >= right or top >= bottom:
        raise error_for(
            ErrorCode.BAD_SHAPE,
            f"box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) holds no pixel of a picture of {width} x {height}",
        )
    return np.ascontiguousarray(pixels[top:bottom, left:right])


def _starts(whole: int, part: int, step: int) -> list[int]:
    last = max(whole - part, 0)
    return [*range(0, last, step), last]


crop = Crop
tiles = Tiles
