"""Pictures by path, under folders that the worker was given and nowhere else.

``--allow-root photos=/mnt/photos`` makes ``photos:2024/a.jpg`` readable. ``photos/2024/a.jpg`` means the same, and
with a single root so does ``2024/a.jpg``; a first folder that has a root's name is taken for that root, so write
the colon where the two could be confused.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PathRoots"]

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: between the check and the opening somebody may have put a FIFO there.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# The machine's trouble, not the path's.
_TRANSIENT = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT})
_MAX_PATH = 4096


class PathRoots:
    """Reads regular files below named folders.

    Each component is opened by itself, relative to the one before and without following links, so that neither
    ``..`` nor a link, nor a folder renamed meanwhile, leads out. What is forbidden and what is missing look alike.
    """

    def __init__(
        self, roots: Mapping[str, str | os.PathLike[str]] | None = None, *, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        """Take the roots.

        Args:
            roots: folder by name; none: every path is forbidden.
            max_bytes: larger files are refused.

        Raises:
            ValueError: a name is empty or holds a slash or a colon, or a root is no folder.
        """
        self._roots = {name: Path(folder) for name, folder in (roots or {}).items()}
        self._max_bytes = max_bytes
        for name, folder in self._roots.items():
            if not name or "/" in name or ":" in name:
                raise ValueError(f"a root's name must not be empty nor hold a slash or colon: {name!r}")
            if not folder.is_dir():
                raise ValueError(f"root {name} is no folder: {folder}")

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Args:
            path: ``name:relative/path``, ``name/relative/path``, or with a single root ``relative/path``.

        Raises:
            RequestFailed: ``fetch_forbidden`` for everything that is not a regular file below a root;
                ``too_large``; ``fetch_failed`` where the machine could not read it now; ``bad_request`` for an
                empty one.
        """
        if not path:
            raise error_for(ErrorCode.BAD_REQUEST, "a path must be text, relative to a root of the worker")
        root, parts = self._locate(path)
        try:
            return self._read(root, parts)
        except OSError as problem:
            if problem.errno in _TRANSIENT:
                raise error_for(ErrorCode.FETCH_FAILED, f"the file could not be read: {problem.strerror}") from None
            raise _forbidden() from None
        except ValueError:  # a NUL, or text that no file name can hold
            raise _forbidden() from None

    def _locate(self, path: str) -> tuple[Path, list[str]]:
        name, colon, rest = path.partition(":")
        if not colon or name not in self._roots:
            name, _, rest = path.partition("/")
        if name not in self._roots:
            if len(self._roots) != 1:
                raise _forbidden()
            (name,) = self._roots
            rest = path
        parts = rest.split("/")
        if len(path) > _MAX_PATH or any(part in ("", ".", "..") for part in parts):
            raise _forbidden()
        return self._roots[name], parts

    def _read(self, root: Path, parts: list[str]) -> bytes:
        # The root itself may be a link: the operator put it there.
        folder = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in parts[:-1]:
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            # Looked at before it is opened, since opening a device can already do something.
            if not stat.S_ISREG(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                raise _forbidden()
            file = os.open(parts[-1], _FILE, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            return self._take(file)
        finally:
            os.close(file)

    def _take(self, fd: int) -> bytes:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _forbidden()
        chunks: list[bytes] = []
        left = self._max_bytes + 1
        # To the end rather than st_size bytes: it may grow or shrink meanwhile.
        while left > 0 and (chunk := os.read(fd, min(left, max(found.st_size, 1) + 1))):
            chunks.append(chunk)
            left -= len(chunk)
        if left <= 0:
            raise error_for(ErrorCode.TOO_LARGE, f"the file has more than {self._max_bytes} bytes")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _forbidden() -> RequestFailed:
    return error_for(ErrorCode.FETCH_FORBIDDEN, "no such file below a root of this worker")
