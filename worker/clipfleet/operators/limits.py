"""What a picture may cost before a worker refuses it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ImageLimits"]

_PILLOW_WARNS_ABOVE = 89_478_485


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Bounds that are checked from the header, before a pixel is decoded.

    The default lets every phone and nearly every camera pass (61 megapixels are 9504 x 6336) and keeps one
    decode under about 0.7 GB; pictures above ``heavy_pixels`` that are decoded at once in a process have no more
    than ``max_pixels`` together, so that the sum is bounded whatever arrives, on however many threads.

    Attributes:
        max_bytes: encoded size.
        max_pixels: width times height; below Pillow's own warning, which therefore never fires. Formats whose
            decoders need a multiple of the memory get that fraction of it (see ``formats.COST``).
        min_side: pixels; a 1 x 1 tracker is no picture.
        max_aspect: longer side over shorter side; what is cropped out of more is a sliver.
        heavy_pixels: above this a decode waits for its share; times the format's cost.
        slow_pixels: the limit for the few codings that Pillow decodes in Python, a byte at a time.
    """

    max_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 64_000_000
    min_side: int = 2
    max_aspect: float = 100.0
    heavy_pixels: int = 4_000_000
    slow_pixels: int = 2_000_000

    def __post_init__(self) -> None:
        if min(self.max_bytes, self.max_pixels, self.min_side, self.heavy_pixels, self.slow_pixels) < 1:
            raise ValueError("every limit must be at least 1")
        if self.max_aspect < 1:
            raise ValueError("max_aspect is longer over shorter side: at least 1")
        if self.max_pixels >= _PILLOW_WARNS_ABOVE:
            raise ValueError(f"max_pixels must stay below Pillow's own limit of {_PILLOW_WARNS_ABOVE}")
