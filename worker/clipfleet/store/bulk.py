"""Milvus' bulk import: a file that Milvus reads from its own storage becomes rows, without passing through a worker.

A job takes one parquet file, whose name Milvus understands: a key in the bucket that it keeps its data in, or a path of
its machine where it keeps them on a disk (https://milvus.io/docs/import-data.md). All of it goes over gRPC, as pymilvus
has it: Milvus 2.3 knows no other way, and later servers still answer it.

What an import is not, measured on Milvus 2.3.5, and why whoever uses this writes the files from rows that
``encode_rows`` has passed:

- *no upsert*: a file that is imported twice leaves each of its rows twice under one id;
- *no check*: it takes ids and metadata above their limits, and NaN; a column of float16 ends the server;
- *not to be seen* at once: a loaded collection shows the rows after it was told to look again (``settle``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.store.catalog import Catalog
from clipfleet.store.connection import Connection, Refused
from clipfleet.store.retry import StoreUnavailable, retrying
from clipfleet.store.scan import COUNT
from clipfleet.store.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.store.types import CollectionInfo, StoreConfig

__all__ = ["BulkImport", "Job", "JobState"]

T = TypeVar("T")

_PATIENCE_S: Final = 120.0
_REFRESH_S: Final = 600.0
_LOOK_EVERY_S: Final = 1.0
# As pymilvus names them (pymilvus.client.types.BulkInsertState): "persisted" rows still wait for their index.
_DONE: Final = frozenset({"Completed"})
_FAILED: Final = frozenset({"Failed", "Failed and cleaned"})


class JobState(Enum):
    """What has become of a job."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # none of its rows is there


@dataclass(frozen=True, slots=True)
class Job:
    """One import job.

    Attributes:
        id: its number.
        file: what it reads, as Milvus was told.
        state: see there.
        part: how much of it is done, 0 to 1.
        rows: how many rows Milvus has read; all of them when it is done.
        reason: why it failed.
        said: its state in Milvus' own word: while it is "Persisted", the rows are there and their index is being built.
    """

    id: int
    file: str
    state: JobState
    part: float = 0.0
    rows: int = 0
    reason: str = ""
    said: str = ""


class BulkImport:
    """The import jobs of a Milvus server; a context manager. Calls are repeated for two minutes while Milvus is away.

    Args:
        config: which Milvus.
        patience_s: how long that is, in seconds.
    """

    def __init__(self, config: StoreConfig, patience_s: float = _PATIENCE_S) -> None:
        self._connection = Connection(config)
        self._catalog = Catalog(self._connection, config)
        self._patience_s = patience_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def open(self, name: str, *, fingerprint: str, dimension: int) -> CollectionInfo:
        """Make the collection with its index, or check that it is this model's.

        Raises:
            RequestFailed: ``bad_request``: it is Milvus Lite, which has no import, or the name cannot be used;
                ``model_mismatch``; ``store_failed``: Milvus does not answer.
        """
        if self._patiently(self._catalog.is_lite):
            raise error_for(
                ErrorCode.BAD_REQUEST, "Milvus Lite has no bulk import: index into it directly, or use a server"
            )
        return self._patiently(lambda: self._catalog.ensure(Spec(name, fingerprint, dimension)))

    def stands_for(self, name: str) -> str:
        """The collection for which an alias stands; of all else the name itself.

        Raises:
            RequestFailed: ``bad_request``: a name that none can have; ``store_failed``: Milvus does not answer.
        """
        found = self._patiently(lambda: self._catalog.describe(name))
        return name if found is None else found.name

    def submit(self, name: str, file: str) -> int:
        """Start a job, unless one that has not failed reads the very file already; its number.

        A file's name stands for its content: a call whose answer was lost is found again by it.

        Raises:
            RequestFailed: ``bad_request``: Milvus refuses; ``store_failed``: it does not answer.
        """

        def once() -> int:
            known = [job.id for job in self._jobs(name) if job.file == file and job.state is not JobState.FAILED]
            return known[0] if known else int(self._connection.call("do_bulk_insert", name, "", [file]))

        return self._patiently(once)

    def look(self, number: int) -> Job:
        """A job as it is now.

        Raises:
            RequestFailed: ``bad_request``: there is none, or none any more; ``store_failed``: Milvus does not answer.
        """

        def once() -> Job:
            try:
                return _job(self._connection.call("get_bulk_insert_state", number))
            except StoreUnavailable as error:
                # Milvus 2.3 has one code for this and for many a passing trouble.
                if "key not found" not in error.message:
                    raise
                text = f"Milvus knows nothing of its import job {number} any more: such records last a day"
                raise error_for(ErrorCode.BAD_REQUEST, text) from error

        return self._patiently(once)

    def refresh(self, name: str) -> None:
        """Have a collection that is loaded show what was imported since.

        Raises:
            RequestFailed: ``store_failed``: Milvus does not answer.
        """
        self._patiently(lambda: self._connection.call("refresh_load", name, timeout=self._patience_s), _REFRESH_S)

    def settle(self, name: str, rows: int, timeout_s: float) -> int:
        """Wait until a refreshed collection counts ``rows``, or more; what it counts in the end.

        Raises:
            RequestFailed: ``store_failed``: Milvus does not answer.
        """
        deadline = time.monotonic() + timeout_s
        while (found := self.count(name)) < rows and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)  # between two looks: a server goes on loading behind its answer
        return found

    def count(self, name: str) -> int:
        """Rows of a collection, at Strong consistency; the same id twice counts twice."""
        return int(self._patiently(lambda: self._catalog.loaded(name, lambda: self._ask(name)))[0]["count(*)"])

    def _ask(self, name: str) -> Any:
        return self._connection.call("query", name, **COUNT)

    def _jobs(self, name: str) -> list[Job]:
        return [_job(state) for state in self._connection.call("list_bulk_insert_tasks", 0, name)]

    def _patiently(self, call: Callable[[], T], patience_s: float | None = None) -> T:
        def asked() -> T:
            try:
                return call()
            except Refused as error:
                raise error_for(ErrorCode.BAD_REQUEST, f"Milvus refuses: {error.text}") from error

        try:
            return retrying(asked, deadline=time.monotonic() + (patience_s or self._patience_s), stop=Event())
        except StoreUnavailable as error:
            raise error_for(ErrorCode.STORE_FAILED, error.message) from error


def _job(state: Any) -> Job:
    name = state.state_name
    kind = JobState.DONE if name in _DONE else JobState.FAILED if name in _FAILED else JobState.RUNNING
    told = state.infos
    percent = str(told.get("progress_percent", ""))
    part = 1.0 if kind is JobState.DONE else int(percent) / 100 if percent.isdecimal() else 0.0
    return Job(
        int(state.task_id), str(told.get("files", "")), kind, part, int(state.row_count), str(state.failed_reason), name
    )
