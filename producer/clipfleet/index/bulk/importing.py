"""One import: rows of part files into files for Milvus, a job for each, and what came of it.

    part files --last row of each id, checked--> file --put--> staging place --job--> rows --settle--> counted

Files are made while earlier ones are imported. Killed anywhere, the same import goes on: the journal beside the files
knows how many rows they hold and which jobs read them, and a file is never given to two jobs.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from clipfleet.index.bulk.files import RowFile
from clipfleet.index.bulk.journal import Journal, StagedFile
from clipfleet.index.bulk.latest import Latest
from clipfleet.index.bulk.staging import StagingError
from clipfleet.index.sinks.sink import SinkError
from clipfleet.index.sinks.written import Written
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from clipfleet.index.bulk.staging import Staging
    from clipfleet.index.sinks.sink import SinkRow
    from clipfleet.schemas.errors import RequestFailed
    from clipfleet.store import BulkImport, CollectionInfo, Job

__all__ = ["FILE_BYTES", "Imported", "Watch", "import_parts"]

# Of one file. Small files become small segments, each with an index of its own; large ones are more to do again, and a
# job of Milvus 2.3 has 15 minutes.
FILE_BYTES: Final = 256 << 20
_JOBS: Final = 4
_TRIES: Final = 3
_LOOK_EVERY_S: Final = 0.5
_STALLED_S: Final = 120.0
_SETTLE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import.

    Attributes:
        rows: that were imported, by this run and those before it that it went on from.
        replaced: rows left out, since a later one has the same id.
        failed: rows that a collection cannot hold.
        found: how many rows the collection counts.
        files: how many were imported.
    """

    rows: int
    replaced: int
    failed: int
    found: int
    files: int

    @property
    def agrees(self) -> bool:
        """Whether the collection holds what was imported."""
        return self.found == self.rows


class Watch:
    """What is told on the way; nothing, unless somebody overrides it."""

    def begins(self, rows: int) -> None:
        """So many rows are to be imported."""

    def reached(self, rows: int) -> None:
        """So many of them Milvus has read by now."""

    def failed(self, id_: str, error: RequestFailed) -> None:
        """A row cannot be stored. Those before a kill are told once."""

    def says(self, text: str) -> None:
        """One line for people."""


def import_parts(
    folders: Sequence[Path],
    collection: str,
    milvus: BulkImport,
    staging: Staging,
    *,
    fresh: bool = False,
    watch: Watch | None = None,
    file_bytes: int = FILE_BYTES,
) -> Imported:
    """Import what ``index --to parquet`` has written into folders, one for each host, say.

    The collection is made for the model of the vectors; one that is there must be that model's, and empty: an import
    replaces no rows. Of rows with one id the last one counts, over all folders in their order.

    Args:
        folders: in the order in which their rows count.
        collection: its name.
        milvus: the server.
        staging: where the files go; for this import alone.
        fresh: forget what an earlier import there has done, and begin again.
        watch: told what happens.
        file_bytes: how large the files become, about.

    Raises:
        SinkError: a folder holds no such parts, or those of another model than the others.
        StagingError: the staging place cannot be used, or holds another import.
        RequestFailed: Milvus refuses, or does not answer; a job has failed.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(Written(folder)) for folder in folders]
        _check_same(opened)
        latest = stack.enter_context(Latest())
        for written in opened:
            for ids in written.ids():
                latest.note(ids)
        if not latest.rows:
            raise SinkError("there are no rows to import")
        of: dict[str, object] = {
            "v": 1,
            # Of an alias what it stands for now: the rest of the files must not go elsewhere once it is switched.
            "collection": milvus.stands_for(collection),
            "model": opened[0].model,
            "ids": latest.digest,
            # The same ids may have come with other vectors: what is imported is not these.
            "parts": [written.digest() for written in opened],
        }
        journal = _journal(staging, of, fresh=fresh)
        info = milvus.open(collection, fingerprint=opened[0].model, dimension=opened[0].dimension)
        _check_rows(milvus, info.name, journal)
        files = _Files(opened, latest, info, file_bytes)
        return _Import(milvus, info.name, staging, journal, watch or Watch()).run(files)


def _check_same(opened: Sequence[Written]) -> None:
    for written in opened:
        first = opened[0]
        if (written.model, written.dimension) != (first.model, first.dimension):
            raise SinkError(
                f"{written.folder} holds vectors of model {written.model} with {written.dimension} dimensions,"
                f" {first.folder} those of {first.model} with {first.dimension}: they never share a collection"
            )


def _check_rows(milvus: BulkImport, collection: str, journal: Journal) -> None:
    """Whether the collection is what the journal has left, or empty where it knows of nothing."""
    if not journal.files:
        if rows := milvus.count(collection):
            raise SinkError(
                f"the collection {collection!r} has {counted(rows, 'row')}, and an import replaces none, but would"
                " double them: import into a new one, and let an alias stand for it"
            )
        return
    if any(file.done and file.rows for file in journal.files):
        milvus.refresh(collection)
        if not milvus.count(collection):
            raise SinkError(
                f"the collection {collection!r} is empty, though an earlier run has imported rows: it was dropped"
                " since; begin again with --fresh"
            )


def _journal(staging: Staging, of: dict[str, object], *, fresh: bool) -> Journal:
    try:
        found = Journal.read(staging)
    except ValueError as error:
        raise StagingError(f"{error}: remove it, or take another place") from None
    if found is not None and fresh:
        found.forget(staging)
        found = None
    if found is None:
        return Journal(of)
    if found.of != of:
        keys = ", ".join(key for key in of if found.of.get(key) != of[key])
        raise StagingError(
            f"{staging} holds another import ({keys} differ{'s' if ',' not in keys else ''}): take another place, or"
            " begin again with --fresh"
        )
    return found


class _Files:
    """The files that are made of the rows, each behind the last one."""

    def __init__(self, opened: Sequence[Written], latest: Latest, info: CollectionInfo, file_bytes: int) -> None:
        self.latest = latest
        self._opened = opened
        self._info = info
        self._file_bytes = file_bytes

    def make(
        self, begin: int, name: Callable[[], str], on_failed: Callable[[str, RequestFailed], None]
    ) -> Iterator[tuple[StagedFile, IO[bytes]]]:
        """Files of all rows from ``begin`` on; each is gone when the next one is asked for, and with this process."""
        pages, row, more = self._pages(begin), begin, True
        while more:
            with tempfile.TemporaryFile(prefix="clipfleet-import-") as raw:
                file = RowFile(raw, self._info)
                failed = 0
                for page in pages:
                    failed += self._take(page, row, file, on_failed)
                    row += len(page)
                    if file.size >= self._file_bytes:
                        break
                else:
                    more = False
                file.close()
                raw.seek(0)
                if file.rows or failed:
                    yield StagedFile(name(), file.rows, row, failed), raw

    def _take(
        self, page: Sequence[SinkRow], begin: int, file: RowFile, on_failed: Callable[[str, RequestFailed], None]
    ) -> int:
        """Write those rows of a page that count; how many of these cannot be stored."""
        from clipfleet.store import Row, encode_rows  # noqa: PLC0415  numpy, and the worker's portion

        kept = [each for number, each in enumerate(page, begin) if self.latest.is_last(each.id, number)]
        encoded, refused = encode_rows([Row(each.id, each.vector, each.metadata) for each in kept], self._info)
        for position, error in refused.items():
            on_failed(kept[position].id, error)
        file.write(encoded)
        return len(refused)

    def _pages(self, begin: int) -> Iterator[list[SinkRow]]:
        for written in self._opened:
            if begin < written.rows:
                yield from written.read(begin)
            begin = max(0, begin - written.rows)


class _Import:
    """One import on its way."""

    def __init__(self, milvus: BulkImport, collection: str, staging: Staging, journal: Journal, watch: Watch) -> None:
        self._milvus = milvus
        self._collection = collection
        self._staging = staging
        self._journal = journal
        self._watch = watch
        self._running: dict[int, StagedFile] = {}
        self._failed: Counter[str] = Counter()
        self._seen: list[tuple[int, str, float, int]] = []
        self._moved_at = time.monotonic()

    def run(self, files: _Files) -> Imported:
        """All of it."""
        journal, unique = self._journal, len(files.latest)
        self._watch.begins(unique)
        if journal.files:
            done = sum(file.rows for file in journal.files if file.done)
            self._watch.says(f"{counted(done, 'row')} of {counted(len(journal.files), 'file')} are imported: going on")
        for file in self._staged(files):
            if not file.done:
                self._start(file)
            while len(self._running) >= _JOBS:
                self._look()
        while self._running:
            self._look()
        self._milvus.refresh(self._collection)
        # What was whole once, and is not now, does not become so by waiting.
        found = self._milvus.settle(self._collection, journal.rows, 0 if journal.settled else _SETTLE_S)
        if found == journal.rows and not journal.settled:
            for file in journal.files:
                self._staging.remove(file.name)
            journal.settled = True
            journal.write(self._staging)
        replaced = files.latest.rows - unique
        return Imported(journal.rows, replaced, journal.failed, found, sum(bool(file.rows) for file in journal.files))

    def _staged(self, files: _Files) -> Iterator[StagedFile]:
        """The files that the journal knows, then those that are made now."""
        journal = self._journal
        yield from tuple(journal.files)
        if journal.staged:
            return
        begin = journal.files[-1].end if journal.files else 0
        for file, raw in files.make(begin, journal.name, self._watch.failed):
            if file.rows:
                self._staging.put(file.name, raw)
            else:
                file.done = True  # Milvus takes no file without rows
            journal.files.append(file)
            journal.write(self._staging)
            yield file
        journal.staged = True
        journal.write(self._staging)

    def _start(self, file: StagedFile) -> None:
        if file.job is None:
            file.job = self._milvus.submit(self._collection, self._staging.seen(file.name))
            self._journal.write(self._staging)
        self._running[file.job] = file

    def _look(self) -> None:
        """Look at the jobs that run, and wait a little when none has ended.

        Raises:
            RequestFailed: one has failed for good; the next run starts it again.
        """
        from clipfleet.store import JobState  # noqa: PLC0415

        jobs = [self._milvus.look(number) for number in self._running]
        reached = sum(file.rows for file in self._journal.files if file.done)
        self._watch.reached(reached + sum(int(self._running[job.id].rows * job.part) for job in jobs))
        self._tell_stalled(jobs)
        ended = [job for job in jobs if job.state is not JobState.RUNNING]
        for job in ended:
            file = self._running.pop(job.id)
            file.done = job.state is JobState.DONE
            file.job = job.id if file.done else None
            self._journal.write(self._staging)
            if not file.done:
                self._again(file, job)
        if not ended:
            threading.Event().wait(_LOOK_EVERY_S)

    def _tell_stalled(self, jobs: Sequence[Job]) -> None:
        """Milvus alone knows how long a job may take: a server that was restarted has been seen to sit on one."""
        now, seen = time.monotonic(), [(job.id, job.said, job.part, job.rows) for job in jobs]
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        elif now - self._moved_at >= _STALLED_S:
            self._moved_at = now
            which = ", ".join(f"{job.id} ({job.said})" for job in jobs)
            self._watch.says(f"nothing has moved for {_STALLED_S:.0f} s: Milvus is at its import jobs {which}")

    def _again(self, file: StagedFile, job: Job) -> None:
        """A job that has failed is started again, for its server may just have been restarted."""
        text = f"Milvus' import job {job.id} of {self._staging.seen(file.name)} has failed: {job.reason}"
        self._failed[file.name] += 1
        if self._failed[file.name] >= _TRIES:
            raise error_for(ErrorCode.STORE_FAILED, text)
        self._watch.says(f"{text}; starting it again")
        self._start(file)
