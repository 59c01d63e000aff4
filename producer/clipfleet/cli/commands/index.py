"""``clipfleet index``: pictures of folders, shards and tables into a collection."""

from __future__ import annotations

import json
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from clipfleet.cli.run import Collection, Run, command, usage
from clipfleet.schemas.keys import Lane

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from clipfleet.cli.progress import Progress
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Outcome, Report, Source

__all__ = ["register", "run_index"]

_Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Folders, files, 'patterns/**', shards (.tar, .tar.gz), tables (.csv, .tsv, .jsonl, .parquet).",
    ),
]
_UrlColumn = Annotated[
    str | None,
    typer.Option(
        "--url-column", metavar="NAME", help="A table's column of addresses, which workers fetch.", show_default=False
    ),
]
_PathColumn = Annotated[
    str | None,
    typer.Option(
        "--path-column", metavar="NAME", help="A table's column of files, which are read here.", show_default=False
    ),
]
_IdColumn = Annotated[
    str | None, typer.Option("--id-column", metavar="NAME", help="A table's column of ids.", show_default=False)
]
_PathRoot = Annotated[
    Path | None,
    typer.Option(
        "--path-root",
        metavar="DIR",
        help="A table's paths are relative to DIR and cannot lead out of it. Default: the table's own folder.",
        show_default=False,
    ),
]
_Lane = Annotated[Lane, typer.Option("--lane", help="Which lane: live queries go before bulk.")]
_Failures = Annotated[
    Path | None,
    typer.Option("--failures", metavar="FILE", help="Write each failed picture with its error code, as JSON lines."),
]
_SHOWN_FAILURES: Final = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "index",
        examples=(
            "clipfleet index ~/Pictures",
            "clipfleet index products/ banners/ --collection shop --failures failed.jsonl",
            "clipfleet index --local examples/pictures",
            "clipfleet index 'shards/{000..099}.tar' 'archive/**/*.jpg'",
            "clipfleet index products.csv --path-column file --id-column sku --path-root /data/pictures",
        ),
    )(index)


def index(  # noqa: PLR0913  each parameter is a flag
    run: Run,
    sources: _Sources,
    *,
    collection: Collection = "images",
    lane: _Lane = Lane.BULK,
    failures: _Failures = None,
    url_column: _UrlColumn = None,
    path_column: _PathColumn = None,
    id_column: _IdColumn = None,
    path_root: _PathRoot = None,
) -> int:
    """Index the pictures of folders, shards and tables.

    A picture's id is its path below SOURCE, SHARD/KEY in a shard, and a column, the path or the address in a table: so
    indexing again replaces and never doubles. Hidden files are passed over; links are followed. What cannot be read or
    decoded is reported, and the rest goes on (exit code 3).
    """
    from clipfleet.index import TABLE_SUFFIXES, Columns, SourceError, open_sources  # noqa: PLC0415

    columns = Columns(url_column, path_column, id_column, path_root)
    if columns != Columns() and not any(source.lower().endswith(TABLE_SUFFIXES) for source in sources):
        raise usage("columns and --path-root are for tables, and none of the sources is one")
    try:
        opened = open_sources(sources, columns)
    except FileNotFoundError as error:
        raise usage(f"{error}: no such file or folder") from None
    except SourceError as error:
        raise usage(str(error)) from None
    with _opened(failures) as file, run.fleet(store=True) as settings:
        return run_index(run, settings, opened, collection=collection, lane=lane, failures=file)


def _opened(failures: Path | None) -> AbstractContextManager[IO[str] | None]:
    try:
        return failures.open("w", encoding="utf-8") if failures else nullcontext()
    except OSError as error:
        raise usage(f"--failures {failures}: cannot be written: {error.strerror}") from None


def run_index(
    run: Run,
    settings: Settings,
    sources: Sequence[Path | Source],
    *,
    collection: str,
    lane: Lane = Lane.BULK,
    failures: IO[str] | None = None,
) -> int:
    """Index ``sources`` and report; the exit code. Failures are written to ``failures`` as JSON lines."""
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.cli.items import Tally  # noqa: PLC0415
    from clipfleet.cli.lite import RowGuard  # noqa: PLC0415
    from clipfleet.cli.progress import Progress  # noqa: PLC0415
    from clipfleet.index import count_all, index_sources, open_sources  # noqa: PLC0415

    opened = [each for source in sources for each in (open_sources([source]) if isinstance(source, Path) else [source])]
    for source in filter(None, (each.about for each in opened)):
        run.out.note(source)
    _check_worker(settings)
    tally = Tally(run.out)
    guard = RowGuard(settings, collection) if settings.milvus_is_lite else None
    with ExitStack() as stack:
        client = stack.enter_context(connect(settings, lane=lane.value, wait_for_worker=True))
        progress = stack.enter_context(Progress(run.out, "indexing", lambda: count_all(opened)))
        sink = _Sink(run, progress, failures)

        def on_outcome(outcome: Outcome) -> None:
            tally.add(outcome.error)
            sink.add(outcome)

        try:
            report = index_sources(client, opened, collection=collection, on_outcome=on_outcome, guard=guard)
        except KeyboardInterrupt:
            stack.close()
            run.out.note(
                f"{sink.indexed} pictures indexed into {collection!r} and {sink.failed} failed until then; indexing"
                " again replaces and never doubles"
            )
            raise
    sink.end()
    _summary(run, report, collection)
    code = tally.end()
    return 1 if report.stopped or (not report.indexed and not code) else code


def _check_worker(settings: Settings) -> None:
    """Nobody there at the start is an error; somebody being restarted in the night is waited for.

    Raises:
        Unavailable: no Redis, or no living worker.
    """
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415
    from clipfleet.schemas.errors import ErrorCode, Unavailable  # noqa: PLC0415

    with QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view:
        if not settings.attended and not view.living_workers():
            raise Unavailable(ErrorCode.UNAVAILABLE, f"no worker on queue {settings.queue!r}")


class _Sink:
    """Shows each outcome, and the first few failures where no program reads."""

    def __init__(self, run: Run, progress: Progress, file: IO[str] | None) -> None:
        self.indexed = 0
        self.failed = 0
        self._out = run.out
        self._progress = progress
        self._file = file

    def add(self, outcome: Outcome) -> None:
        """One more."""
        from clipfleet.cli.commands.embed import failure_json  # noqa: PLC0415

        error = outcome.error
        self._progress.advance(failed=error is not None)
        if error is None:
            self.indexed += 1
            if self._out.json_lines:
                self._out.json({"input": outcome.path, "ok": True, "id": outcome.id})
            return
        self.failed += 1
        line = {"input": outcome.path, "ok": False, "id": outcome.id, "error": failure_json(error)}
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
        if self._out.json_lines:
            self._out.json(line)
        elif self.failed <= _SHOWN_FAILURES:
            self._out.note(f"{outcome.path}: {error.code}: {error.message}")

    def end(self) -> None:
        """Say where the failures are that were not shown."""
        more = self.failed - _SHOWN_FAILURES
        if more > 0 and not self._out.json_lines:
            where = "--failures FILE lists them all" if self._file is None else f"{self._file.name} lists them all"
            self._out.note(f"and {more} more; {where}")


def _summary(run: Run, report: Report, collection: str) -> None:
    codes = ", ".join(f"{count} {code}" for code, count in report.failed.most_common())
    text = (
        f"{report.indexed} of {report.found} pictures indexed into {collection!r} in {report.seconds:.1f} s"
        f" ({report.rate:.1f}/s)" + (f"; failed: {codes}" if codes else "")
    )
    if report.stopped:
        text += f"; stopped: {report.stopped}"
    if not report.found:
        text = "no pictures found"
    if report.incomplete:
        text += f"; incomplete: {', '.join(report.incomplete[:_SHOWN_FAILURES])}"
    if report.duplicates:
        text += f"; {report.duplicates} duplicate{'s' if report.duplicates > 1 else ''} not sent again"
    if report.skipped:
        text += f"; {report.skipped} other file{'s' if report.skipped > 1 else ''} skipped"
    if run.out.json_lines or not run.out.is_terminal:
        run.out.log().info(
            "indexed",
            indexed=report.indexed,
            found=report.found,
            failed={str(code): count for code, count in report.failed.items()},
            skipped=report.skipped,
            duplicates=report.duplicates,
            incomplete=report.incomplete,
            seconds=round(report.seconds, 2),
            stopped=report.stopped,
        )
    if not run.out.json_lines:
        run.out.line(text)
