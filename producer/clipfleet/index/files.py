"""Files as they are found on real disks: odd names, pipes, vanished and unreadable ones."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PICTURE_SUFFIXES", "printable", "read_picture", "unreadable"]

# What a folder is searched for; the content, not the name, then decides what a file is.
PICTURE_SUFFIXES: Final = frozenset(
    f".{name}"
    for name in (
        *("avif", "bmp", "gif", "ico", "j2k", "jfif", "jp2", "jpe", "jpeg", "jpg"),
        *("pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"),
    )
)
# No fleet takes more; a fleet's own limit is lower by default, and the fleet's to say.
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024


def printable(name: str) -> str:
    r"""A file name as valid text: bytes outside UTF-8 (which Python holds as lone surrogates) become ``\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read_picture(path: Path) -> bytes:
    """The bytes of a regular file.

    Raises:
        RequestFailed: ``fetch_failed`` when it cannot be read, ``unsupported_media`` when it is a folder, a pipe or a
            device, ``too_large`` above 64 MiB.
    """
    try:
        # Looked at before it is opened: opening a pipe waits for somebody to write.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise error_for(ErrorCode.UNSUPPORTED_MEDIA, "not a regular file")
        if status.st_size > _MAX_FILE_BYTES:
            raise error_for(ErrorCode.TOO_LARGE, f"{status.st_size:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise unreadable(error) from None


def unreadable(error: OSError | ValueError) -> RequestFailed:
    """The failure of a file or folder that the system will not let us read."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return error_for(ErrorCode.FETCH_FAILED, f"cannot be read: {text}", retryable=False)
