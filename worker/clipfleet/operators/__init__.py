"""What a stage can do to one item: decode a picture, fetch it, bring it to a model's size."""

from __future__ import annotations

from clipfleet.operators.image import decode_image, prepare_image, silence_pillow
from clipfleet.operators.limits import ImageLimits
from clipfleet.operators.resize import fit

__all__ = ["ImageLimits", "decode_image", "fit", "prepare_image", "silence_pillow"]
