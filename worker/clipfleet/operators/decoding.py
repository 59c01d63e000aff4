"""``decode``: an encoded picture to pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clipfleet.operators.image import decode_image
from clipfleet.operators.operator import Operator, Place, current_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Decode", "decode"]


@dataclass(frozen=True)
class Decode(Operator):
    """A picture as bytes, ``{url}`` or ``{path}`` to its pixels.

    Gives uint8 [h, w, 3] in sRGB, upright, alpha laid on white; what is no whole picture fails with its code. URLs
    and paths as far as the worker allows them.
    """

    name: ClassVar[str] = "decode"
    task: ClassVar[str] = "picture -> pixels"

    def open(self, place: Place) -> Callable[[Any], NDArray[np.uint8]]:
        """Raises nothing; the function raises ``BadInput`` with the code of what is wrong with a picture."""
        fetch, limits = place.services.fetcher.fetch, place.services.limits

        def decode(picture: Any) -> NDArray[np.uint8]:
            return np.asarray(decode_image(fetch(picture, timeout_s=current_item().left_s), limits))

        return decode


decode = Decode
