"""Pictures in: any bytes to upright sRGB pixels, or one of the protocol's verdicts.

Naive ``Image.open(p).convert("RGB")`` gets a third of what people send silently wrong (sideways, negative,
all black, transparent parts in colours that nobody sees) and takes a 20 kB file for 800 MB. The steps here::

    bytes ──▶ sniff: format by content ──▶ container: metadata out, claims checked ──▶ open: size checked
          ──▶ load (JPEG: scaled while decoding) ──▶ 8-bit sRGB on the background ──▶ upright ──▶ resize, crop

Pillow releases the GIL while it decodes, converts and resizes, so threads are enough.
"""

from __future__ import annotations

import contextlib
import io
import logging
import struct
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    IcoImagePlugin,
    Image,
    ImageFile,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from clipfleet.operators._avif import read_avif
from clipfleet.operators._budget import Budget
from clipfleet.operators._container import Container
from clipfleet.operators._exif import orientation
from clipfleet.operators._jpeg import read_jpeg
from clipfleet.operators._native import give_back, silence_libtiff
from clipfleet.operators._others import read_ico, read_tiff, read_webp
from clipfleet.operators._png import read_png
from clipfleet.operators.colour import to_rgb
from clipfleet.operators.fitting import fit
from clipfleet.operators.formats import COST, sniff
from clipfleet.operators.limits import ImageLimits
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from clipfleet.models.config import ImageConfig

__all__ = ["decode_image", "prepare_image", "silence_pillow"]

_PILLOW_LOG = logging.getLogger("PIL")
_WHITE = (255, 255, 255)
_TAG_BITS, _TAG_PHOTOMETRIC, _TAG_ORIENTATION = 258, 262, 274
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# How Pillow's plugins say that a file is well formed but of a kind that they do not decode.
_NOT_DECODED = (
    "unknown pixel mode",
    "unknown data organization",
    "unsupported",
    "not supported",
    "not installed",
    "cannot handle",
)

# How many times the target a JPEG scaled while decoding must keep. libjpeg's scaling is a box filter: at twice the
# target the resized pixels had a cosine of 0.9998 to the plain way's (7-pixel colour noise), at three times 0.9999,
# and photographs of 12 megapixels come out at the same scale either way (45 ms of CPU for 182).
_SPARE = 3

# Pictures of more than a few megapixels share a budget in this process: memory then has a bound that does not grow
# with the number of threads.
_heavy = Budget()


# As many threads as there are processors is what Pillow takes for each AVIF; ours decode side by side already.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1


class _TiffFile(TiffImagePlugin.TiffImageFile):
    """Leaves orientation to us: Pillow reads every EXIF directory here, and a broken one would cost the picture."""

    def load_end(self) -> None:
        self._size = self.im.size


_OPENERS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "AVIF": AvifImagePlugin.AvifImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "ICO": IcoImagePlugin.IcoImageFile,
    # Not Pillow's factory, which would go on to read a multi-picture index: the first picture is this JPEG.
    "JPEG": JpegImagePlugin.JpegImageFile,
    "JPEG2000": Jpeg2KImagePlugin.Jpeg2KImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "PPM": PpmImagePlugin.PpmImageFile,
    "TIFF": _TiffFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
}
_READERS: dict[str, Callable[[bytes], Container]] = {
    "AVIF": read_avif,
    "ICO": read_ico,
    "JPEG": read_jpeg,
    "PNG": read_png,
    "TIFF": read_tiff,
    "WEBP": read_webp,
}


def silence_pillow() -> None:
    """Keep what Pillow says of odd pictures out of the process, for good: a stranger's picture writes no log.

    ``warnings.catch_warnings`` swaps a list that all threads share, so it cannot be used around a decode. A
    filter for Pillow's modules alone can stay; it is put back when somebody has reset the list (as pytest does).
    """
    if _PILLOW_LOG.level != logging.CRITICAL:
        _PILLOW_LOG.setLevel(logging.CRITICAL)
    wanted = ("ignore", None, Warning)
    for entry in warnings.filters:
        if entry[:3] == wanted and entry[3] is not None and getattr(entry[3], "pattern", "") == r"PIL\.":
            return
    warnings.filterwarnings("ignore", module=r"PIL\.")


def decode_image(
    data: bytes | bytearray | memoryview,
    limits: ImageLimits | None = None,
    *,
    target: int | None = None,
    background: tuple[int, int, int] = _WHITE,
) -> Image.Image:
    """Decode a picture to upright sRGB.

    The first frame or page counts; content decides the format; alpha is composited on ``background``; a valid ICC
    profile is applied and a broken one ignored, as is all other metadata but EXIF orientation.

    Args:
        data: the encoded picture.
        limits: what it may cost; the defaults where None.
        target: side in pixels that the result will be resized to. A JPEG is then decoded at 1/2, 1/4 or 1/8 of its
            size where that leaves at least three times the target on the shorter side.
        background: RGB 0 to 255.

    Returns:
        a loaded picture of mode RGB.

    Raises:
        RequestFailed: ``empty_input``, ``too_large``, ``unsupported_media``, ``corrupt_image``,
            ``too_many_pixels`` or ``bad_shape``.
    """
    limits = limits or ImageLimits()
    if not len(data):
        raise error_for(ErrorCode.EMPTY_INPUT, "the picture has no bytes")
    if len(data) > limits.max_bytes:
        raise error_for(ErrorCode.TOO_LARGE, f"{len(data)} bytes; at most {limits.max_bytes} are decoded")
    data = bytes(data)
    silence_pillow()
    silence_libtiff()
    kind = sniff(data)
    try:
        return _decode(kind, data, limits, target, background)
    except RequestFailed:
        raise
    except Exception as problem:  # noqa: BLE001
        # Plugins raise whatever a hostile byte leads them to (SyntaxError, struct.error, OverflowError, MemoryError,
        # KeyError ...): a picture that cannot be decoded is a verdict on it, never a fault of the worker.
        verdict = _verdict(kind, problem)
    # Not from inside the handler: a chained traceback would keep the half-decoded picture for as long as the verdict.
    raise verdict


def prepare_image(
    data: bytes | bytearray | memoryview, config: ImageConfig, limits: ImageLimits | None = None
) -> NDArray[np.uint8]:
    """Decode a picture and bring it to what a model takes, as open_clip's own preprocessing would.

    Args:
        data: the encoded picture.
        config: the model's preprocessing. Mean and std are applied by the exported graph.
        limits: what it may cost; the defaults where None.

    Returns:
        uint8 of shape [height, width, 3], sRGB.

    Raises:
        RequestFailed: as :func:`decode_image`.
    """
    image = decode_image(data, limits, target=max(config.size), background=config.background)
    return np.asarray(fit(image, config))


def _decode(
    kind: str, data: bytes, limits: ImageLimits, target: int | None, background: tuple[int, int, int]
) -> Image.Image:
    container = _READERS.get(kind, Container)(data)
    if container.format:
        kind = container.format
        container = _READERS[kind](container.data)
    if container.size is None:
        return _load(kind, container, limits, target, background)
    # Opening already allocates, so the turn comes before it and lasts to the end.
    _check(container.size, kind, limits, container)
    with _share(_area(container.size), kind, limits):
        return _load(kind, container, limits, target, background)


def _load(
    kind: str, container: Container, limits: ImageLimits, target: int | None, background: tuple[int, int, int]
) -> Image.Image:
    image = _OPENERS[kind](io.BytesIO(container.data))
    size = image.size
    _check(size, kind, limits, container)
    if any(tile.codec_name in Image.DECODERS for tile in image.tile[:1]) and _area(size) > limits.slow_pixels:
        raise error_for(
            ErrorCode.TOO_MANY_PIXELS, f"{kind} of this coding is decoded up to {limits.slow_pixels} pixels"
        )
    if kind == "JPEG" and target is not None:
        image.draft(None, (_SPARE * target, _SPARE * target))
        if not image.info.get("progressive"):
            # A progressive file keeps all coefficients of the full size, whatever the scale.
            size = image.size
    with _share(0 if container.size else _weight(size, kind, container, limits), kind, limits):
        covered = image.tile[0].extents if kind == "GIF" and image.tile else None
        image.load()
        upright = _UPRIGHT.get(_orientation(image, container))
        result = to_rgb(image, background, **_facts(image, container))
        if covered is not None and covered != (0, 0, *result.size):
            # Pillow paints what a GIF's first frame leaves free in the palette's first colour; it shows nothing.
            canvas = Image.new("RGB", result.size, background)
            canvas.paste(result.crop(covered), covered)
            result = canvas
        if upright is not None:
            result = result.transpose(upright)
    result.info = {}
    return result


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _weight(size: tuple[int, int], kind: str, container: Container, limits: ImageLimits) -> int:
    if kind != "AVIF":
        return _area(size)
    # Of an unusual layout we cannot tell: it runs alone.
    return limits.max_pixels if container.frame is None else max(_area(size), container.frame)


@contextlib.contextmanager
def _share(pixels: int, kind: str, limits: ImageLimits) -> Iterator[None]:
    pixels *= COST.get(kind, 1)
    if pixels <= limits.heavy_pixels:
        yield
        return
    with _heavy.hold(pixels, limits.max_pixels):
        try:
            yield
        finally:
            give_back()


def _check(size: tuple[int, int], kind: str, limits: ImageLimits, container: Container) -> None:
    width, height = size
    allowed = limits.max_pixels // COST.get(kind, 1)
    if width * height > allowed:
        raise error_for(ErrorCode.TOO_MANY_PIXELS, f"{width} x {height} pixels; at most {allowed} are decoded")
    if container.frame is not None and container.frame > allowed:
        raise error_for(
            ErrorCode.TOO_MANY_PIXELS, f"a frame of {container.frame} pixels; at most {allowed} are decoded"
        )
    if container.max_pixels is not None and width * height > container.max_pixels:
        raise error_for(
            ErrorCode.TOO_MANY_PIXELS, f"{width} x {height} pixels in so many passes that decoding would not end"
        )
    short, long = sorted(size)
    if short < limits.min_side:
        raise error_for(ErrorCode.BAD_SHAPE, f"{width} x {height}: sides must have {limits.min_side} pixels")
    if long > limits.max_aspect * short:
        raise error_for(
            ErrorCode.BAD_SHAPE, f"{width} x {height}: one side is over {limits.max_aspect:g} times the other"
        )


def _orientation(image: ImageFile.ImageFile, container: Container) -> int:
    if container.orientation is not None:
        return container.orientation
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        value = image.tag_v2.get(_TAG_ORIENTATION)
        return value if isinstance(value, int) else 1
    exif = image.info.get("exif")
    return orientation(exif) if isinstance(exif, bytes) else 1


def _facts(image: ImageFile.ImageFile, container: Container) -> dict[str, Any]:
    """What colour conversion needs and Pillow's mode does not tell; puts profile and transparency in order."""
    if container.profile is not None:
        image.info["icc_profile"] = container.profile
    _scale_transparency(image, container.depth)
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return {}
    bits = image.tag_v2.get(_TAG_BITS, (0,))
    return {
        "depth": bits[0] if isinstance(bits, tuple) and isinstance(bits[0], int) else 0,
        "inverted": image.tag_v2.get(_TAG_PHOTOMETRIC) == 0 and image.mode in ("I;16", "F"),
    }


def _scale_transparency(image: ImageFile.ImageFile, depth: int) -> None:
    # Pillow scales a PNG's samples to 8 bits, but not the colour that stands for transparent.
    value = image.info.get("transparency")
    if depth == 16 and isinstance(value, tuple):
        image.info["transparency"] = tuple(sample >> 8 for sample in value)
    elif depth in (2, 4) and image.mode == "L" and isinstance(value, int):
        image.info["transparency"] = (value & (2**depth - 1)) * (255 // (2**depth - 1))


def _verdict(kind: str, problem: Exception) -> RequestFailed:
    if isinstance(problem, Image.DecompressionBombError):
        return error_for(ErrorCode.TOO_MANY_PIXELS, f"{kind}: {problem}")
    text = str(problem)
    if isinstance(problem, struct.error | MemoryError) or not text or not text.isprintable():
        text = type(problem).__name__
    if any(phrase in text.lower() for phrase in _NOT_DECODED):
        return error_for(ErrorCode.UNSUPPORTED_MEDIA, f"{kind}: {text[:200]}")
    return error_for(ErrorCode.CORRUPT_IMAGE, f"{kind}: {text[:200]}")
