"""``phash`` and ``dedupe``: pictures that look the same.

A perceptual hash is 64 bits that few changes of scale, quality or brightness touch; two pictures look alike where few
of their bits differ. Both hashes are those of the ``imagehash`` package, bit by bit, so that its values may be compared
with these. Source: hackerfactor.com, "Looks Like It" (2011) and "Kind of Like That" (2013).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from PIL import Image

from clipfleet.operators._values import as_pixels
from clipfleet.operators.operator import Operator, Place
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["Dedupe", "PHash"]

Method = Literal["dct", "difference"]
_SIDE = 8
_HASH = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class PHash(Operator):
    """The perceptual hash of a picture, as 16 hex digits.

    Attributes:
        method: ``dct`` (pHash: the low frequencies against their median) or ``difference`` (dHash: each pixel of 9 x 8
            against its left neighbour).
    """

    name = "phash"
    task = "pixels -> hash"

    method: Method = "dct"

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"method is one of {', '.join(get_args(Method))}, not {self.method!r}")

    def open(self, place: Place) -> Callable[..., Any]:  # noqa: ARG002  it needs nothing of it
        """uint8 [h, w, 3] to 16 hex digits; ``bad_shape`` for what is no picture."""
        return _dct_hash if self.method == "dct" else _difference_hash


@dataclass(frozen=True)
class Dedupe(Operator):
    """Keep the first of pictures that look the same, among the rows of one request; for ``window_all``.

    It takes the list of hashes and, where there are more columns, their lists; and gives the kept rows in order: values
    of the column after the hashes, or tuples where there are several, or hashes where there is none. A ``flat_map``
    opens rows of them again::

        .window_all(("hash", "crop"), "crops", dedupe())
        .flat_map("crops", "crop", lambda crops: crops)

    Attributes:
        distance: two pictures look the same when at most so many of the 64 bits differ.
    """

    name = "dedupe"
    task = "many (hash, ...) -> list of (...)"

    distance: int = 6

    def __post_init__(self) -> None:
        if not 0 <= self.distance < 64:
            raise ValueError(f"distance is a number of bits from 0 to 63, not {self.distance}")

    def open(self, place: Place) -> Callable[..., Any]:  # noqa: ARG002  it needs nothing of it
        """The function raises ``bad_shape`` for a hash that is none, and for lists of different lengths."""

        def dedupe(hashes: Sequence[str], *columns: Sequence[Any]) -> list[Any]:
            if any(len(column) != len(hashes) for column in columns):
                raise error_for(ErrorCode.BAD_SHAPE, "the columns have different numbers of rows")
            kept: list[int] = []
            rows = []
            values = columns or (hashes,)
            for number, bits in enumerate(map(_bits, hashes)):
                if all((bits ^ other).bit_count() > self.distance for other in kept):
                    kept.append(bits)
                    row = tuple(column[number] for column in values)
                    rows.append(row[0] if len(row) == 1 else row)
            return rows

        return dedupe


def _grey(pixels: Any, width: int, height: int) -> NDArray[np.uint8]:
    picture = Image.fromarray(np.ascontiguousarray(as_pixels(pixels))).convert("L")
    return np.asarray(picture.resize((width, height), Image.Resampling.LANCZOS))


def _difference_hash(pixels: Any) -> str:
    grey = _grey(pixels, _SIDE + 1, _SIDE)
    return _hex(grey[:, 1:] > grey[:, :-1])


def _cosines(side: int) -> NDArray[np.float64]:
    """Row k of the DCT-II of ``side`` samples, scaled as scipy has it: 2 cos(pi k (2 n + 1) / 2 N)."""
    k, n = np.arange(_SIDE)[:, None], np.arange(side)[None, :]
    return 2.0 * np.cos(np.pi * k * (2 * n + 1) / (2 * side))


_DCT = _cosines(4 * _SIDE)


def _dct_hash(pixels: Any) -> str:
    grey = _grey(pixels, 4 * _SIDE, 4 * _SIDE).astype(np.float64)
    low = _DCT @ grey @ _DCT.T
    return _hex(low > np.median(low))


def _hex(bits: NDArray[np.bool_]) -> str:
    return np.packbits(bits.ravel()).tobytes().hex()


def _bits(text: Any) -> int:
    if not isinstance(text, str) or not _HASH.fullmatch(text):
        raise error_for(ErrorCode.BAD_SHAPE, "a hash is 16 hex digits, as phash gives them")
    return int(text, 16)


phash = PHash
dedupe = Dedupe
