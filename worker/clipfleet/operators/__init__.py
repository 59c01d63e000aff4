"""Operators: what a stage of a pipeline can do, and the parts that they are made of.

Lower-case names are operators, for the stages of a pipeline: ``.map("image", "pixels", decode())``; docs/operators.md.
"""

from __future__ import annotations

from clipfleet.operators.cropping import crop, tiles
from clipfleet.operators.detection import detect
from clipfleet.operators.duplicates import dedupe, phash
from clipfleet.operators.fetch import Fetcher, FetchLimits, UrlFetcher
from clipfleet.operators.http_service import http_call
from clipfleet.operators.image import decode_image, prepare_image, silence_pillow
from clipfleet.operators.limits import ImageLimits
from clipfleet.operators.operator import BatchOperator, Noted, Opened, Operator, Place, StageOptions, current_item
from clipfleet.operators.paths import PathRoots
from clipfleet.operators.pca import reduce_dim
from clipfleet.operators.ranking import rank
from clipfleet.operators.resize import fit
from clipfleet.operators.resizing import resize
from clipfleet.operators.vectors import normalize
from clipfleet.operators.video import frames
from clipfleet.operators.zero_shot import classify

__all__ = [
    "BatchOperator",
    "FetchLimits",
    "Fetcher",
    "ImageLimits",
    "Noted",
    "Opened",
    "Operator",
    "PathRoots",
    "Place",
    "StageOptions",
    "UrlFetcher",
    "classify",
    "crop",
    "current_item",
    "decode_image",
    "dedupe",
    "detect",
    "fit",
    "frames",
    "http_call",
    "normalize",
    "phash",
    "prepare_image",
    "rank",
    "reduce_dim",
    "resize",
    "silence_pillow",
    "tiles",
]
