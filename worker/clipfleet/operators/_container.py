"""What is known of a picture from its container, before Pillow sees it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Container", "Unreadable"]


class Unreadable(Exception):
    """The container is broken, or built to be slow; becomes ``corrupt_image``."""


@dataclass(frozen=True, slots=True)
class Container:
    """A picture's bytes as Pillow shall get them, and what was taken from them.

    Attributes:
        data: the encoded picture, freed of metadata where that is known to be harmful.
        orientation: the EXIF tag, 1 to 8; None: ask the opened picture.
        profile: ICC profile; None: ask the opened picture.
        size: width and height where they must be known before opening, since opening already allocates them.
        max_pixels: a lower limit of this very file; None: the format's.
        frame: pixels of the frame that is decoded, where that may be more than width times height; None: unknown.
        depth: bits per sample where Pillow does not tell; 0: unknown.
        format: the format of ``data`` where it differs from that of the container (a PNG inside an ICO).
    """

    data: bytes
    orientation: int | None = None
    profile: bytes | None = None
    size: tuple[int, int] | None = None
    max_pixels: int | None = None
    depth: int = 0
    frame: int | None = None
    format: str = ""
