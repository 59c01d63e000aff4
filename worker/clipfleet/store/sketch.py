"""A few numbers that stand for a vector, so that whoever had it written can tell later whether it is still there.

A digest would not do: a store may give a vector back with other last bits (an index that normalises what it is given).
So a sketch is four sums of the vector's numbers with fixed signs, which are close for vectors that are close: vectors
of cosine 0.99999 or less differ in one of them by more than is let pass, but for one pair in some millions. It is text,
since it travels among a result's notes, which others write out as JSON.
"""

from __future__ import annotations

import struct
from functools import cache
from hashlib import shake_128
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["NOTE", "alike", "sketches", "unchanged"]

NOTE: Final = "sketch"
"""Where a result's notes have it."""
_SUMS: Final = 4
_DIGITS: Final = _SUMS * 4 * 2
# What 32,768 numbers rounded to float32 sum up to is 1e-5.
_TOLERANCE: Final = 1e-4


def sketches(vectors: Sequence[NDArray[np.float32]]) -> list[str]:
    """A sketch of each vector, 32 hexadecimal digits; of what points the same way it is the same, whatever its length.

    Args:
        vectors: float32, shape ``[n, dimension]``, none of them zero.
    """
    if not len(vectors):
        return []
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    text = ((rows @ _signs(rows.shape[1])) / lengths[:, None]).astype("<f4").tobytes().hex()
    return [text[start : start + _DIGITS] for start in range(0, len(text), _DIGITS)]


def alike(one: str, other: str) -> bool:
    """Whether two sketches are of the same vector."""
    try:
        pairs = zip(*(struct.unpack(f"<{_SUMS}f", bytes.fromhex(each)) for each in (one, other)), strict=True)
    except (ValueError, struct.error):
        return False  # of a worker that spells them otherwise
    return all(abs(first - second) <= _TOLERANCE for first, second in pairs)


def unchanged(noted: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """By the id of each row, whether its vector is the one whose sketch was noted."""
    told = sketches([np.asarray(row["vector"], dtype=np.float32) for row in rows])
    return {row["id"]: alike(noted[row["id"]], sketch) for row, sketch in zip(rows, told, strict=True)}


@cache
def _signs(dimension: int) -> NDArray[np.float32]:
    """Shape ``[dimension, 4]``; by a hash and not by a generator of numbers, since every release must have the same."""
    bits = np.unpackbits(np.frombuffer(shake_128(b"clipfleet sketch").digest(dimension * _SUMS // 8 + 1), np.uint8))
    return bits[: dimension * _SUMS].reshape(dimension, _SUMS).astype(np.float32) * 2.0 - 1.0
