"""One import of the command line: what is shown on the way, and where failures go."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from clipfleet.cli.failures import Failures
from clipfleet.cli.progress import Progress
from clipfleet.cli.run import usage
from clipfleet.index.bulk import Imported, Watch, import_parts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clipfleet.cli.run import Run
    from clipfleet.cli.settings import Settings
    from clipfleet.index.bulk import Staging
    from clipfleet.schemas.errors import RequestFailed

__all__ = ["run_import"]

_SHOWN_FAILURES = 10


def run_import(
    run: Run,
    settings: Settings,
    folders: Sequence[Path],
    collection: str,
    staging: Staging,
    failures: Path | None,
    *,
    fresh: bool,
) -> Imported:
    """Import and show how far it is.

    Raises:
        SinkError: a folder cannot be imported, or the collection is not empty.
        StagingError: the staging place cannot be used.
        RequestFailed: Milvus refuses, does not answer, or a job has failed.
    """
    from clipfleet.store import BulkImport, StoreConfig  # noqa: PLC0415  imports pymilvus when it is used

    if settings.milvus_uri is None:
        raise usage("which Milvus is it?", "Name it with --milvus-uri.")
    config = StoreConfig(settings.milvus_uri, settings.milvus_token, settings.milvus_ca_file)
    with ExitStack() as stack:
        milvus = stack.enter_context(BulkImport(config))
        shown = _Shown(run, stack, stack.enter_context(Failures(failures)))
        return import_parts(folders, collection, milvus, staging, fresh=fresh, watch=shown)


class _Shown(Watch):
    """Shows it."""

    def __init__(self, run: Run, stack: ExitStack, failures: Failures) -> None:
        self._run = run
        self._stack = stack
        self._failures = failures
        self._progress: Progress | None = None
        self._reached = self._failed = 0

    def begins(self, rows: int) -> None:
        self._progress = self._stack.enter_context(Progress(self._run.out, "importing", lambda: range(rows)))

    def reached(self, rows: int) -> None:
        if self._progress is not None and rows > self._reached:
            self._progress.advance(failed=False, by=rows - self._reached)
            self._reached = rows

    def failed(self, id_: str, error: RequestFailed) -> None:
        from clipfleet.cli.commands.embed import failure_json  # noqa: PLC0415

        self._failed += 1
        line = {"input": id_, "ok": False, "id": id_, "error": failure_json(error)}
        self._failures.write(line)
        if self._run.out.json_lines:
            self._run.out.json(line)
        elif self._failed <= _SHOWN_FAILURES:
            self._run.out.failed(id_, error)

    def says(self, text: str) -> None:
        self._run.out.note(text)
