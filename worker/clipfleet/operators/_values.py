"""What operators take, checked once and in the same words for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clipfleet.operators.limits import ImageLimits

__all__ = ["Box", "as_box", "as_pixels", "as_vector", "as_whole_pixels", "unit", "whole_edges", "whole_size"]

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels from the upper left corner; x1 and y1 are the first ones outside."""


def as_pixels(value: Any) -> NDArray[np.uint8]:
    """A picture.

    Returns:
        ``value`` itself: uint8 [h, w, 3], not empty.

    Raises:
        BadInput: ``bad_shape`` for anything else.
    """
    if (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.ndim == 3
        and value.shape[2] == 3
        and value.size
    ):
        return value
    found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
    raise error_for(ErrorCode.BAD_SHAPE, f"pixels are uint8 [h, w, 3], not {found}")


def as_whole_pixels(value: Any, limits: ImageLimits) -> NDArray[np.uint8]:
    """A picture that is no sliver: scaled by its shorter side, one would be larger than any picture that is decoded.

    Raises:
        BadInput: ``bad_shape`` for anything else.
    """
    height, width = as_pixels(value).shape[:2]
    if max(height, width) > limits.max_aspect * min(height, width):
        raise error_for(
            ErrorCode.BAD_SHAPE, f"{width} x {height}: one side is over {limits.max_aspect:g} times the other"
        )
    pixels: NDArray[np.uint8] = value
    return pixels


def as_vector(value: Any, dimension: int | None = None) -> NDArray[np.float64]:
    """A vector.

    Args:
        value: numbers in a row.
        dimension: how many; None: any number but none.

    Returns:
        float64 [n], all finite.

    Raises:
        BadInput: ``bad_shape`` for anything else.
    """
    try:
        vector = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise error_for(ErrorCode.BAD_SHAPE, f"a vector is numbers in a row, not {type(value).__name__}") from None
    if vector.ndim != 1 or not vector.size or (dimension is not None and vector.size != dimension):
        wanted = f"[{dimension or 'n'}]"
        raise error_for(ErrorCode.BAD_SHAPE, f"a vector of shape {wanted} is needed, not {list(vector.shape)}")
    if not np.isfinite(vector).all():
        raise error_for(ErrorCode.BAD_SHAPE, "a vector's numbers must be finite")
    return vector


def unit(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    """The vector of length 1 in the same direction.

    Raises:
        BadInput: ``bad_shape`` for zeros, which have no direction.
    """
    # By the largest first: squares of what float64 can hold may not fit into it.
    largest = float(np.abs(vector).max())
    if not largest:
        raise error_for(ErrorCode.BAD_SHAPE, "a vector of zeros has no direction")
    scaled = vector / largest
    return np.asarray(scaled / np.linalg.norm(scaled), dtype=np.float32)


def as_box(value: Any) -> Box:
    """A box.

    Raises:
        BadInput: ``bad_shape`` for what is not four finite numbers.
    """
    try:
        # Text has elements too: "1234" is no box.
        x0, y0, x1, y1 = (float(edge) for edge in (() if isinstance(value, str | bytes) else value))
    except (TypeError, ValueError, OverflowError):
        raise error_for(ErrorCode.BAD_SHAPE, "a box is four numbers: x0, y0, x1, y1") from None
    if not all(map(math.isfinite, (x0, y0, x1, y1))):
        raise error_for(ErrorCode.BAD_SHAPE, "a box's edges must be finite")
    return x0, y0, x1, y1


def whole_edges(box: Box, height: int, width: int) -> tuple[int, int, int, int]:
    """The box that is cut out of a picture: edges rounded to the nearest pixel, and within it."""
    x0, y0, x1, y1 = box
    # Cut before rounding: a float can be larger than any index.
    left, right = (round(min(max(edge, 0.0), width)) for edge in (x0, x1))
    top, bottom = (round(min(max(edge, 0.0), height)) for edge in (y0, y1))
    return left, top, right, bottom


def whole_size(value: Any, name: str) -> tuple[int, int]:
    """Height and width of an option that may be one number for both.

    Raises:
        ValueError: it is neither one nor two whole numbers of at least 1.
    """
    sides = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(sides) != 2 or not all(isinstance(side, int) and side >= 1 for side in sides):
        raise ValueError(f"{name} is a number of pixels, or (height, width), not {value!r}")
    height, width = sides
    return height, width
