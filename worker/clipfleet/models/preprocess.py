"""How a model wants its pictures: from its tag, its directory or its owner, never from its name alone.

Two tags of one architecture may differ (ViT-L-14's ``laion2b_s32b_b82k`` has mean 0.5), and open_clip silently takes
its defaults for a checkpoint on disk. So a checkpoint needs a tag to take them from, or the values themselves.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import open_clip
from open_clip.transform import PreprocessCfg, merge_preprocess_dict

from clipfleet.models.config import ImageConfig
from clipfleet.models.errors import ExportRefused, ModelNotFound

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["architecture_config", "image_config", "local_preprocess", "stated_preprocess", "tag_preprocess"]


def architecture_config(architecture: str) -> dict[str, Any]:
    """open_clip's configuration of an architecture.

    Raises:
        ModelNotFound: it knows none of that name; names the nearest.
    """
    config = open_clip.get_model_config(architecture)
    if config is None:
        near = difflib.get_close_matches(architecture, open_clip.list_models(), n=3, cutoff=0.5)
        raise ModelNotFound(f"open_clip knows no architecture {architecture!r}; near: {', '.join(near) or 'none'}")
    return dict(config)


def tag_preprocess(architecture: str, tag: str) -> dict[str, Any]:
    """What open_clip knows of a pretrained tag: preprocessing and where its weights are.

    Raises:
        ModelNotFound: no such architecture, or no such tag of it.
        ExportRefused: its weights were trained with the other GELU; open_clip would only warn.
    """
    config = architecture_config(architecture)
    known = open_clip.get_pretrained_cfg(architecture, tag)
    if not known:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise ModelNotFound(f"{architecture} has no tag {tag!r}; it has {tags}")
    quick = bool(known.get("quick_gelu", False))
    if quick != bool(config.get("quick_gelu", False)):
        base = architecture.removesuffix("-quickgelu")
        raise ExportRefused(
            f"{architecture}/{tag} was trained {'with' if quick else 'without'} QuickGELU, and this architecture is "
            f"the other way: name {base}{'-quickgelu' if quick else ''}/{tag}"
        )
    return dict(known)


def stated_preprocess(architecture: str, preprocess: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The preprocessing of weights that carry none: a tag's, or one given in open_clip's words.

    Raises:
        ExportRefused: none was given, or it lacks a value.
        ModelNotFound: no such tag of this architecture.
    """
    if isinstance(preprocess, str):
        return tag_preprocess(architecture, preprocess)
    needed = ("mean", "std", "interpolation", "resize_mode")
    missing = [name for name in needed if name not in (preprocess or {})]
    if missing:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise ExportRefused(
            f"a checkpoint does not tell its preprocessing (missing: {', '.join(missing)}). Name the tag that it was "
            f"trained from (of {architecture}: {tags}), or give {', '.join(needed)}, or put it beside an "
            "open_clip_config.json with preprocess_cfg and name it local-dir:DIR"
        )
    return dict(preprocess or {})


def local_preprocess(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The ``preprocess_cfg`` of an ``open_clip_config.json``.

    Files on the hub often give mean and std alone; the rest is then that format's own default.

    Raises:
        ExportRefused: there is none, or it lacks mean or std.
    """
    stated = config.get("preprocess_cfg")
    if not isinstance(stated, Mapping) or not {"mean", "std"} <= stated.keys():
        raise ExportRefused(f"{folder}/open_clip_config.json holds no preprocess_cfg with mean and std")
    return dict(stated)


def image_config(overlay: Mapping[str, Any], image_size: int | tuple[int, int]) -> ImageConfig:
    """open_clip's preprocessing for inference, as ``ImageConfig``.

    Args:
        overlay: what the tag, directory or owner says; the rest is open_clip's default.
        image_size: of the built tower, in pixels: a number, or height and width.

    Raises:
        BadBundle: a value is out of range or of an unknown kind.
    """
    merged = merge_preprocess_dict(PreprocessCfg(), dict(overlay))
    height, width = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    interpolation = "bicubic" if merged["interpolation"] == "random" else merged["interpolation"]
    if merged["resize_mode"] == "shortest" and height != width:
        # open_clip builds this one resize without passing the interpolation on.
        interpolation = "bicubic"
    return ImageConfig.from_json(
        {
            "size": [height, width],
            "resize_mode": merged["resize_mode"],
            "interpolation": interpolation,
            "fill_color": merged["fill_color"],
            "mean": _three(merged["mean"]),
            "std": _three(merged["std"]),
        }
    )


def _three(value: Any) -> list[Any]:
    return [value] * 3 if isinstance(value, (int, float)) else list(value)
