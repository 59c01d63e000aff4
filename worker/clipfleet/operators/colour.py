"""From whatever mode Pillow opened to sRGB pixels.

The order is: scale to 8 bits, unpack palettes, ICC profile to sRGB, composite alpha on the background, RGB;
only then is anything resized. open_clip resizes first, which is the same for greyscale and RGB (each band by
itself), but takes the nearest neighbour for palette and 1-bit pictures; its weights were trained on pictures
converted first (webdataset's ``pilrgb``), and so are ours treated.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image, ImageCms

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["to_rgb"]

_MAX_PROFILE = 4 * 1024 * 1024
_CACHED_PROFILE = 1024 * 1024
_CACHED = 16
_SPACES = {"RGB": "RGB ", "L": "GRAY", "CMYK": "CMYK", "LAB": "Lab "}
_WITH_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_KEYED = frozenset({"1", "L", "P", "RGB"})

_T = TypeVar("_T")

_transforms: OrderedDict[bytes, ImageCms.ImageCmsTransform | None] = OrderedDict()
_lock = threading.Lock()


def to_rgb(
    image: Image.Image, background: tuple[int, int, int], *, depth: int = 0, inverted: bool = False
) -> Image.Image:
    """Convert a loaded picture of any mode to RGB.

    Args:
        image: a loaded picture; ``info`` may hold ``icc_profile`` and ``transparency``.
        background: what transparency shows, RGB 0 to 255.
        depth: bits per sample of 16-bit integer modes, where fewer are used (12-bit scans); 0: all 16.
        inverted: whether 0 is white (TIFF photometric 0) in a mode for which Pillow does not turn it round.

    Returns:
        a new picture of mode RGB in sRGB, of the same size, or ``image`` itself if it was one already.

    Raises:
        ValueError: Pillow knows no way to RGB for this mode.
    """
    profile = image.info.get("icc_profile")
    image = _eight_bits(image, depth, inverted=inverted)
    alpha: Image.Image | None = None
    if image.mode in _WITH_ALPHA or (image.mode in _KEYED and "transparency" in image.info):
        image, alpha = _split_alpha(image)
    elif image.mode == "1":
        image = image.convert("L")
    elif image.mode not in _SPACES:
        image = image.convert("RGB")
    colour = _to_srgb(image, profile)
    if alpha is None:
        return colour
    canvas = Image.new("RGB", colour.size, background)
    canvas.paste(colour, mask=alpha)
    return canvas


def _split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode != "LA":
        image = image.convert("RGBA")
    alpha = image.getchannel("A")
    colour = image.getchannel("L") if image.mode == "LA" else image.convert("RGB")
    opaque = alpha.getextrema() == (255, 255)
    return colour, None if opaque else alpha


def _eight_bits(image: Image.Image, depth: int, *, inverted: bool) -> Image.Image:
    if image.mode.startswith("I;16"):
        result = _from_16(image, depth)
    elif image.mode in ("I", "F"):
        result = _from_range(image)
    else:
        return image
    return result.point(lambda value: 255 - value) if inverted else result


def _from_16(image: Image.Image, depth: int) -> Image.Image:
    values = np.asarray(image).astype(np.uint16)
    transparent = image.info.get("transparency")
    mask = None if not isinstance(transparent, int) else values == transparent
    if 8 < depth < 16:
        values <<= 16 - depth
    # round(value / 257), within 16 bits: libpng's rule, where Pillow clips.
    values -= values >> 8
    values += 128
    values >>= 8
    grey = Image.fromarray(values.astype(np.uint8))
    if mask is not None and mask.any():
        grey.putalpha(Image.fromarray(np.where(mask, 0, 255).astype(np.uint8)))
    return grey


def _from_range(image: Image.Image) -> Image.Image:
    """32-bit integers and floats have no white of their own: take the smallest usual range that holds them all.

    0..1 (floats alone), 0..255 and 0..65535 are scaled as such; anything else (heights, temperatures) from its own
    least to its own greatest value. NaN becomes the least, infinities the bounds.
    """
    values = np.asarray(image, dtype=np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        known = values[finite]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
        values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    low, high = float(values.min()), float(values.max())
    tops = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
    top = next((top for top in tops if low >= 0 and high <= top), None)
    if top is None:
        # In double, and halved, so that the width of the widest float range does not overflow.
        width = high / 2 - low / 2
        scaled = (values.astype(np.float64) / 2 - low / 2) * (255.0 / width if width else 0.0)
    else:
        scaled = values * np.float64(255.0 / top)
    return Image.fromarray(np.rint(scaled).clip(0, 255).astype(np.uint8))


def _to_srgb(image: Image.Image, profile: Any) -> Image.Image:
    """Apply a profile that is valid and of this picture's colour space; without one, Pillow's plain conversion."""
    if isinstance(profile, bytes) and 128 <= len(profile) <= _MAX_PROFILE:
        transform = _transform(profile, image.mode)
        if transform is not None:
            converted = _quietly(lambda: transform.apply(image))
            if converted is not None:
                converted.info.clear()
                return converted
    return image if image.mode == "RGB" else image.convert("RGB")


def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    if len(profile) > _CACHED_PROFILE:
        return _quietly(lambda: _build(profile, mode))
    key = hashlib.blake2b(profile, digest_size=16, person=mode.encode()).digest()
    with _lock:
        if key in _transforms:
            _transforms.move_to_end(key)
            return _transforms[key]
    built = _quietly(lambda: _build(profile, mode))
    with _lock:
        _transforms[key] = built
        while len(_transforms) > _CACHED:
            _transforms.popitem(last=False)
    return built


def _build(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    if source.profile.xcolor_space != _SPACES[mode]:
        return None
    transform = ImageCms.buildTransform(
        source,
        ImageCms.createProfile("sRGB"),
        mode,
        "RGB",
        ImageCms.Intent.PERCEPTUAL,
        # One transform serves all decoding threads: without a pixel cache it is read-only.
        ImageCms.Flags.NOCACHE,
    )
    return None if mode == "RGB" and _changes_nothing(transform) else transform


def _changes_nothing(transform: ImageCms.ImageCmsTransform) -> bool:
    # Most profiles are some maker's sRGB: 4,096 colours tell, and spare each such picture the transform.
    steps = np.linspace(0, 255, 16).round().astype(np.uint8)
    colours = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(64, 64, 3)
    after = np.asarray(transform.apply(Image.fromarray(colours)))
    return bool(np.abs(after.astype(np.int16) - colours).max() <= 1)


def _quietly(call: Callable[[], _T]) -> _T | None:
    # A profile is advice about colour: whatever is wrong with it, the pixels are there.
    try:
        return call()
    except Exception:  # noqa: BLE001 - lcms and Pillow raise PyCMSError, OSError, ValueError, struct.error ...
        return None
