"""``normalize``: vectors of length 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clipfleet.operators._values import as_vector, unit
from clipfleet.operators.operator import Operator, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Normalize"]


@dataclass(frozen=True)
class Normalize(Operator):
    """Bring a vector to length 1: what search by cosine wants of vectors that are no model's own (a mean, say)."""

    name = "normalize"
    task = "vector -> vector"

    def open(self, place: Place) -> Callable[..., Any]:  # noqa: ARG002  it needs nothing of it
        """Numbers [n] to float32 [n]; ``bad_shape`` for zeros, for what is not finite and for what is no vector."""
        return _normalize


def _normalize(vector: Any) -> NDArray[np.float32]:
    return unit(as_vector(vector))


normalize = Normalize
