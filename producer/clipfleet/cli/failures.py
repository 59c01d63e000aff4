"""The file that names what has failed."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Self

from clipfleet.cli.errors import CliError, Exit

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Failures"]


class Failures:
    """The file that names each failed item as a JSON line; it is empty when nothing failed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        if self.path is not None:
            try:
                # What an earlier run said is over; and whether it can be written shows now, not at 3 a.m.
                self._file = self.path.open("w", encoding="utf-8")
            except OSError as error:
                raise CliError(
                    f"--failures {self.path}: cannot be written: {error.strerror}", exit_code=Exit.USAGE
                ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, line: dict[str, object]) -> None:
        """One more; on disk at once, for whoever looks while the run goes on."""
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
