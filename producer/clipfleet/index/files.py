"""Files as they are found on real disks: odd names, pipes, vanished and unreadable ones."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

__all__ = [
    "MAX_FILE_BYTES",
    "PICTURE_SUFFIXES",
    "open_regular",
    "printable",
    "read_picture",
    "unreadable",
]

# What a folder is searched for; the content, not the name, then decides what a file is.
PICTURE_SUFFIXES: Final = frozenset(
    f".{name}"
    for name in (
        *("avif", "bmp", "gif", "ico", "j2k", "jfif", "jp2", "jpe", "jpeg", "jpg"),
        *("pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"),
    )
)
# No fleet takes more; a fleet's own limit is lower by default, and the fleet's to say.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024


def printable(text: str) -> str:
    r"""A name, or text of somebody's file, as valid Unicode: bytes outside UTF-8 become ``\xNN``.

    Python holds such bytes as lone surrogates; other lone surrogates (JSON can spell them) become ``\uNNNN``.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """A regular file, opened for reading; never waits: a pipe without a writer would hold its reader for ever.

    Raises:
        RequestFailed: ``fetch_failed`` when it cannot be read, ``unsupported_media`` when it is a folder, a pipe or a
            device.
    """
    try:
        # Windows has neither of these, and no pipes among its files.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise unreadable(error) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise error_for(ErrorCode.UNSUPPORTED_MEDIA, "not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_picture(path: Path) -> bytes:
    """The bytes of a regular file.

    Raises:
        RequestFailed: as :func:`open_regular`, and ``too_large`` above 64 MiB.
    """
    from clipfleet.producer.files import read_whole  # noqa: PLC0415  so that the walk alone needs no client

    with open_regular(path) as file:
        try:
            data = read_whole(file, MAX_FILE_BYTES)
        except OSError as error:
            raise unreadable(error) from None
    if len(data) > MAX_FILE_BYTES:
        raise error_for(ErrorCode.TOO_LARGE, f"more than {MAX_FILE_BYTES:,} bytes")
    return data


def unreadable(error: OSError | ValueError) -> RequestFailed:
    """The failure of a file or folder that the system will not let us read."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return error_for(ErrorCode.FETCH_FAILED, f"cannot be read: {text}", retryable=False)
