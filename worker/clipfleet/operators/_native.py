"""What Pillow's C libraries do to the process, put right."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["give_back", "silence_libtiff"]


def give_back() -> None:
    """Return what glibc holds of freed memory to the system; nothing happens with another C library.

    Pillow takes pictures in blocks of 16 MB. glibc, once such blocks have been freed, keeps the next ones in the
    arena of the thread that freed them: three decoding threads that took turns with 240 MB each held 1.2 GB
    (measured).
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


@cache
def silence_libtiff() -> None:
    """Stop libtiff from printing a line to stderr for each thing that it dislikes in a file: a log anyone could fill.

    The library is the one that Pillow has loaded, found in the list of mappings; where there is none of that name
    (Pillow built with libtiff inside), it goes on printing.
    """
    with contextlib.suppress(OSError, AttributeError):
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        for path in {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libtiff" in line}:
            library = ctypes.CDLL(path)
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)
