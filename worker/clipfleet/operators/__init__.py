"""What a stage can do to one item: fetch a picture, decode it, bring it to a model's size."""

from __future__ import annotations

from clipfleet.operators.fetch import Fetcher, FetchLimits, UrlFetcher
from clipfleet.operators.image import decode_image, prepare_image, silence_pillow
from clipfleet.operators.limits import ImageLimits
from clipfleet.operators.paths import PathRoots
from clipfleet.operators.resize import fit

__all__ = [
    "FetchLimits",
    "Fetcher",
    "ImageLimits",
    "PathRoots",
    "UrlFetcher",
    "decode_image",
    "fit",
    "prepare_image",
    "silence_pillow",
]
