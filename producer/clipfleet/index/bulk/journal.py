"""How far an import has come: a small file beside those that it has put there.

A file is in it before its job is started, and named as no other import names one: a job whose number was not written
down any more is found by what it reads.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from clipfleet.index.bulk.staging import Staging

__all__ = ["Journal", "StagedFile"]

_NAME: Final = "clipfleet-import.json"


@dataclass(slots=True)
class StagedFile:
    """A file for Milvus.

    Attributes:
        name: in the staging place.
        rows: that it holds.
        end: of all rows read, how many lie before the first one behind it.
        failed: how many of the rows read for it cannot be stored.
        job: the number of its job; None before one was started, or after it failed.
        done: whether its rows are in Milvus.
    """

    name: str
    rows: int
    end: int
    failed: int = 0
    job: int | None = None
    done: bool = False


@dataclass(slots=True)
class Journal:
    """What one import has done.

    Attributes:
        of: what is imported, and where to: the same for the same import.
        token: in its files' names.
        files: in their order.
        staged: whether there are no more files to come.
        settled: whether the collection was seen to hold all of it.
    """

    of: dict[str, Any]
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    files: list[StagedFile] = field(default_factory=list)
    staged: bool = False
    settled: bool = False

    @classmethod
    def read(cls, staging: Staging) -> Self | None:
        """The one that is there; None: there is none.

        Raises:
            ValueError: it cannot be understood.
            StagingError: it cannot be read.
        """
        data = staging.read(_NAME)
        if data is None:
            return None
        try:
            told = json.loads(data)
            files = [StagedFile(**each) for each in told.pop("files")]
            return cls(files=files, **told)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{staging}: its {_NAME} cannot be understood") from None

    def write(self, staging: Staging) -> None:
        """Keep it.

        Raises:
            StagingError: it cannot be written.
        """
        staging.write(_NAME, json.dumps(asdict(self)).encode())

    def name(self) -> str:
        """Of the next file."""
        return f"clipfleet-{self.token}-{len(self.files):05}.parquet"

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(file.rows for file in self.files)

    @property
    def failed(self) -> int:
        """Of all rows read, how many cannot be stored."""
        return sum(file.failed for file in self.files)

    def forget(self, staging: Staging) -> None:
        """Remove it, and its files."""
        for file in self.files:
            staging.remove(file.name)
        staging.remove(_NAME)
