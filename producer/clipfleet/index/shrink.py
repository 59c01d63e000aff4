"""Large pictures made smaller before they enter Redis: of a photograph a model sees a few hundred pixels a side."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SHRINK_PX", "can_shrink", "shrunk"]

# Four times what most models look at (224), and more than twice what any does (448).
SHRINK_PX: Final = 896
# Below it the time spent here saves nobody anything.
_LARGE_BYTES: Final = 2 << 20
_MAX_PIXELS: Final = 80_000_000
_FORMATS: Final = ("JPEG", "PNG", "WEBP")
# Measured against the vectors of the whole pictures, see docs/cli.md.
_QUALITY: Final = 92
# EXIF 2.32, 4.6.4 A: what makes a picture upright.
_ORIENTATION: Final = 0x0112
_TURNS: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def can_shrink() -> bool:
    """Whether Pillow is installed here."""
    from importlib.util import find_spec  # noqa: PLC0415

    return find_spec("PIL") is not None


def shrunk(data: bytes, px: int) -> bytes:
    """A picture above 2 MiB whose shorter side is longer than ``px``, as a JPEG with that shorter side; else ``data``.

    The colour profile goes with it, and what EXIF says of its orientation is done. Left as they are: pictures with
    transparency, several frames, or other than 8-bit RGB or grey; and what cannot be decoded, whose verdict is the
    worker's.
    """
    if px <= 0 or len(data) <= _LARGE_BYTES:
        return data
    try:
        smaller = _smaller(data, px)
    except Exception:  # noqa: BLE001 - whatever Pillow makes of strange bytes: the worker decides what they are
        return data
    return smaller if smaller is not None and len(smaller) < len(data) else data


def _smaller(data: bytes, px: int) -> bytes | None:
    from PIL import Image  # noqa: PLC0415  where nothing is large it is not needed

    with _quiet(Image), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        width, height = image.size
        if min(width, height) <= px or width * height > _MAX_PIXELS or image.mode not in {"RGB", "L"}:
            return None
        # The later pictures of a phone's MPO are depth maps and the like.
        if "transparency" in image.info or (image.format != "MPO" and getattr(image, "n_frames", 1) > 1):
            return None
        factor = px / min(width, height)
        size = (round(width * factor), round(height * factor))
        # A JPEG is decoded at a half, a quarter or an eighth, where that is still twice what is wanted.
        image.draft(None, (2 * size[0], 2 * size[1]))
        profile = image.info.get("icc_profile")
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
        small = image.resize(size, Image.Resampling.BICUBIC)
        if turn is not None:
            small = small.transpose(Image.Transpose[turn])
        out = io.BytesIO()
        small.save(out, "JPEG", quality=_QUALITY, subsampling=0, icc_profile=profile)
        return out.getvalue()


@contextmanager
def _quiet(pillow: Any) -> Iterator[None]:
    """A bomb warns while it is opened: here that is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        yield
