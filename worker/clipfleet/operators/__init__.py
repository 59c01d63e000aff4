"""Operators: what a stage of a pipeline can do, and the parts that they are made of.

Lower-case names are operators, for the stages of a pipeline: ``.map("image", "pixels", decode())``; docs/operators.md.
Importing this package costs nothing: each name is loaded when it is first used (PEP 562), so that a worker that only
echoes, and a definition that is only drawn, load neither Pillow nor a runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipfleet.operators.clip import clip_image, clip_text
    from clipfleet.operators.cropping import crop, tiles
    from clipfleet.operators.decoding import decode
    from clipfleet.operators.detection import detect
    from clipfleet.operators.duplicates import dedupe, phash
    from clipfleet.operators.fetch import Fetcher, FetchLimits, UrlFetcher
    from clipfleet.operators.fitting import fit
    from clipfleet.operators.http_service import http_call
    from clipfleet.operators.image import decode_image, prepare_image, silence_pillow
    from clipfleet.operators.limits import ImageLimits
    from clipfleet.operators.milvus import milvus_delete, milvus_insert, milvus_search
    from clipfleet.operators.operator import (
        OMIT,
        BatchOperator,
        Noted,
        Opened,
        Operator,
        Place,
        StageOptions,
        current_item,
    )
    from clipfleet.operators.paths import PathRoots
    from clipfleet.operators.pca import reduce_dim
    from clipfleet.operators.ranking import rank
    from clipfleet.operators.resizing import resize
    from clipfleet.operators.vectors import normalize
    from clipfleet.operators.video import frames
    from clipfleet.operators.zero_shot import classify

__all__ = [
    "OMIT",
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
    "clip_image",
    "clip_text",
    "crop",
    "current_item",
    "decode",
    "decode_image",
    "dedupe",
    "detect",
    "fit",
    "frames",
    "http_call",
    "milvus_delete",
    "milvus_insert",
    "milvus_search",
    "normalize",
    "phash",
    "prepare_image",
    "rank",
    "reduce_dim",
    "resize",
    "silence_pillow",
    "tiles",
]

_HOMES = {
    "clip": ("clip_image", "clip_text"),
    "cropping": ("crop", "tiles"),
    "decoding": ("decode",),
    "detection": ("detect",),
    "duplicates": ("dedupe", "phash"),
    "fetch": ("FetchLimits", "Fetcher", "UrlFetcher"),
    "http_service": ("http_call",),
    "image": ("decode_image", "prepare_image", "silence_pillow"),
    "limits": ("ImageLimits",),
    "milvus": ("milvus_delete", "milvus_insert", "milvus_search"),
    "operator": ("BatchOperator", "Noted", "OMIT", "Opened", "Operator", "Place", "StageOptions", "current_item"),
    "paths": ("PathRoots",),
    "pca": ("reduce_dim",),
    "ranking": ("rank",),
    "fitting": ("fit",),
    "resizing": ("resize",),
    "vectors": ("normalize",),
    "video": ("frames",),
    "zero_shot": ("classify",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
