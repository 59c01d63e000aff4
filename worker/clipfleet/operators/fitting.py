"""open_clip's resize and crop, without torch.

The arithmetic of ``open_clip.transform.image_transform`` (3.3.0, inference branch) and of what it calls in
torchvision (``resize``, ``center_crop``, ``pad`` on PIL pictures), to the pixel: the roundings differ between
the three modes, and one off is a shifted picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from clipfleet.models.config import ImageConfig

__all__ = ["fit"]

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def fit(image: Image.Image, config: ImageConfig) -> Image.Image:
    """Bring a picture to the size that the model takes.

    Args:
        image: mode RGB, upright.
        config: the model's preprocessing; its mean and std are applied by the exported graph, not here.

    Returns:
        mode RGB, of ``config.size``.
    """
    height, width = config.size
    how = _FILTERS[config.interpolation]
    if config.resize_mode == "squash":
        return _resize(image, (width, height), how)
    if config.resize_mode == "longest":
        return _crop_or_pad(_keep_ratio(image, config.size, how, longest=True), config.size, config.fill_color)
    if height == width:
        image = _resize(image, _shortest(image.size, height), how)
    else:
        # open_clip passes no filter here, so that it is bicubic whatever the configuration says.
        image = _keep_ratio(image, config.size, Image.Resampling.BICUBIC, longest=False)
    return _crop_or_pad(image, config.size, (0, 0, 0))


def _resize(image: Image.Image, size: tuple[int, int], how: Image.Resampling) -> Image.Image:
    return image if image.size == size else image.resize(size, how)


def _shortest(size: tuple[int, int], target: int) -> tuple[int, int]:
    # torchvision._compute_resized_output_size truncates the longer side.
    width, height = size
    if width <= height:
        return target, int(target * height / width)
    return int(target * width / height), target


def _keep_ratio(image: Image.Image, target: tuple[int, int], how: Image.Resampling, *, longest: bool) -> Image.Image:
    # open_clip.transform.ResizeKeepRatio rounds both sides.
    width, height = image.size
    ratios = height / target[0], width / target[1]
    ratio = max(ratios) if longest else min(ratios)
    return _resize(image, (max(1, round(width / ratio)), max(1, round(height / ratio))), how)


def _crop_or_pad(image: Image.Image, target: tuple[int, int], fill: tuple[int, int, int]) -> Image.Image:
    height, width = target
    if image.width < width or image.height < height:
        canvas = Image.new("RGB", (max(width, image.width), max(height, image.height)), fill)
        canvas.paste(image, ((canvas.width - image.width) // 2, (canvas.height - image.height) // 2))
        image = canvas
    if image.size == (width, height):
        return image
    top, left = round((image.height - height) / 2.0), round((image.width - width) / 2.0)
    return image.crop((left, top, left + width, top + height))
