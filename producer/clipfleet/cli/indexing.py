"""One indexing run of the command line: where what became of each is kept, what is shown, and the exit code."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.failures import Failures
from clipfleet.cli.index_manifest import open_manifest
from clipfleet.index import Meter, Sending, open_sources
from clipfleet.index.sinks import SinkError
from clipfleet.index.sync import Visited
from clipfleet.schemas.keys import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from clipfleet.cli.progress import Progress
    from clipfleet.cli.reconciling import Verdict
    from clipfleet.cli.run import Run
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Manifest, Outcome, Processes, Report, Source
    from clipfleet.index.sinks import Dtype, FolderSink
    from clipfleet.producer import Client

__all__ = ["Files", "Plan", "run_index"]

_SHOWN_FAILURES: Final = 10


@dataclass(frozen=True, slots=True)
class Files:
    """Part files that vectors go into, instead of a collection; see ``open_sink``."""

    to: str
    out: Path
    dtype: Dtype = "float32"
    rows_per_part: int = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run is to do.

    Attributes:
        sending: where the rows go, and how pictures travel.
        lane: of the queue.
        failures: the file that names each failed item; None = beside the manifest.
        manifest: where what became of each is kept; None = nowhere.
        named: whether the user named the manifest, so that there is no going without.
        fresh: whether to forget what the manifest knows.
        retry_failed: whether to send those again that failed of themselves.
        reconcile: whether to compare the store with the manifest at the end.
        files: where vectors go instead of the collection; None = there is none.
        processes: how many read, shrink and send.
        sync: whether rows of pictures that have left the sources are deleted.
        corpus: a text that is the same for the same sources, and options that pick items.
    """

    sending: Sending = field(default_factory=Sending)
    lane: Lane = Lane.BULK
    failures: Path | None = None
    manifest: Path | None = None
    named: bool = False
    fresh: bool = False
    retry_failed: bool = False
    reconcile: bool = False
    files: Files | None = None
    processes: int = 1
    sync: bool = False
    corpus: str = ""


def run_index(run: Run, settings: Settings, sources: Sequence[Path | Source], plan: Plan) -> int:
    """Index ``sources`` and report; the exit code."""
    opened = [each for source in sources for each in (open_sources([source]) if isinstance(source, Path) else [source])]
    for source in filter(None, (each.about for each in opened)):
        run.out.note(source)
    _check_worker(settings)
    with ExitStack() as stack:
        manifest = open_manifest(run, plan, stack)
        try:
            sink = stack.enter_context(_sink(plan.files)) if plan.files is not None else None
            return _Indexing(run, settings, plan, manifest, sink).go(opened)
        except SinkError as error:
            raise CliError(str(error)) from None


def _sink(files: Files) -> FolderSink:
    from clipfleet.index.sinks import open_sink  # noqa: PLC0415

    return open_sink(files.to, files.out, dtype=files.dtype, rows_per_part=files.rows_per_part)


class _Indexing:
    """A run with what it needs."""

    def __init__(
        self, run: Run, settings: Settings, plan: Plan, manifest: Manifest | None, sink: FolderSink | None
    ) -> None:
        self._run = run
        self._settings = settings
        self._plan = plan
        self._manifest = manifest
        self._sink = sink
        self._meter = Meter()

    def go(self, sources: Sequence[Source]) -> int:
        """Index and reconcile; the exit code."""
        from clipfleet.cli.items import Tally  # noqa: PLC0415
        from clipfleet.cli.progress import Progress  # noqa: PLC0415
        from clipfleet.index import count_all  # noqa: PLC0415

        run = self._run
        tally = Tally(run.out)
        with ExitStack() as stack:
            visited = stack.enter_context(Visited()) if self._plan.sync else None
            if visited is not None:
                sources = visited.over(sources)
            client = stack.enter_context(self._client())
            with ExitStack() as shown:
                failures = shown.enter_context(Failures(self._failures_file()))
                progress = shown.enter_context(
                    Progress(run.out, "indexing", lambda: count_all(sources), lambda: self._meter.bottleneck)
                )
                sink = _Sink(run, progress, failures)

                def on_outcome(outcome: Outcome) -> None:
                    tally.add(outcome.error)
                    sink.add(outcome)

                try:
                    report = self.index(client, sources, on_outcome)
                except KeyboardInterrupt:
                    shown.close()
                    self._interrupted(sink)
                    raise
            sink.end()
            verdicts = [self._synced(visited, report)] if visited is not None else []
            verdicts += [self._reconciled(client, sources)] if not report.stopped else []
        found = [verdict for verdict in verdicts if verdict is not None]
        _summary(run, report, self._where, found)
        code = tally.end()
        if report.stopped or (not report.indexed and not report.earlier and not code):
            return Exit.FAILED
        return code or (Exit.PARTIAL if any(verdict.agrees is False for verdict in found) else Exit.OK)

    def _synced(self, visited: Visited, report: Report) -> Verdict | None:
        from clipfleet.cli.syncing import sync_run  # noqa: PLC0415

        if self._manifest is None:
            return None
        return sync_run(self._settings, self._plan.sending.collection, self._manifest, visited, report)

    def _client(self) -> AbstractContextManager[Client | Processes]:
        from clipfleet.cli.client import connect, connect_many  # noqa: PLC0415

        lane, count = self._plan.lane, self._plan.processes
        if count == 1:
            return connect(self._settings, lane=lane.value, wait_for_worker=True)
        return connect_many(count, self._settings, lane=lane.value)

    def _reconciled(self, client: Client | Processes, sources: Sequence[Source]) -> Verdict | None:
        from clipfleet.cli.reconciling import reconcile_run  # noqa: PLC0415

        if self._manifest is None or self._sink is not None or not self._plan.reconcile:
            return None

        def again(missing: Sequence[Source]) -> Report:
            return self.index(client, missing, None)

        collection = self._plan.sending.collection
        return reconcile_run(self._run.out, self._settings, collection, self._manifest, sources, again)

    def index(
        self, client: Client | Processes, sources: Sequence[Source], on_outcome: Callable[[Outcome], None] | None
    ) -> Report:
        """One pass over sources."""
        from clipfleet.cli.lite import RowGuard  # noqa: PLC0415
        from clipfleet.index import index_sources  # noqa: PLC0415

        lite = self._settings.milvus_is_lite and self._sink is None
        return index_sources(
            client,
            sources,
            sending=self._plan.sending,
            manifest=self._manifest,
            retry_failed=self._plan.retry_failed,
            on_outcome=on_outcome,
            guard=RowGuard(self._settings, self._plan.sending.collection) if lite else None,
            sink=self._sink,
            meter=self._meter,
        )

    @property
    def _where(self) -> str:
        files = self._plan.files
        return repr(self._plan.sending.collection) if files is None else str(files.out)

    def _failures_file(self) -> Path | None:
        if self._plan.failures is not None or self._manifest is None:
            return self._plan.failures
        return self._manifest.path.with_suffix(".failures.jsonl")

    def _interrupted(self, sink: _Sink) -> None:
        resumes = "goes on from here" if self._manifest is not None else "replaces and never doubles"
        self._run.out.note(
            f"{sink.indexed} pictures indexed into {self._where} and {sink.failed} failed until then; the"
            f" same command {resumes}"
        )


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

    def __init__(self, run: Run, progress: Progress, failures: Failures) -> None:
        self.indexed = 0
        self.failed = 0
        self._out = run.out
        self._progress = progress
        self._failures = failures

    def add(self, outcome: Outcome) -> None:
        """One more."""
        from clipfleet.cli.commands.embed import failure_json  # noqa: PLC0415

        error = outcome.error
        self._progress.advance(failed=error is not None, earlier=outcome.earlier)
        if error is None:
            # What an earlier run has done it has told as well.
            self.indexed += not outcome.earlier
            if self._out.json_lines and not outcome.earlier:
                self._out.json({"input": outcome.path, "ok": True, "id": outcome.id})
            return
        self.failed += 1
        line = {"input": outcome.path, "ok": False, "id": outcome.id, "error": failure_json(error)}
        self._failures.write(line)
        if self._out.json_lines:
            self._out.json(line)
        elif self.failed <= _SHOWN_FAILURES:
            self._out.note(f"{outcome.path}: {error.code}: {error.message}")

    def end(self) -> None:
        """Say where the failures are that were not shown."""
        more = self.failed - _SHOWN_FAILURES
        if more > 0 and not self._out.json_lines:
            where = "--failures FILE" if self._failures.path is None else self._failures.path
            self._out.note(f"and {more} more; {where} lists them all")


def _summary(run: Run, report: Report, where: str, verdicts: Sequence[Verdict]) -> None:
    codes = ", ".join(f"{count} {code}" for code, count in report.failed.most_common())
    earlier = f", {report.earlier} of them earlier," if report.earlier else ""
    text = (
        f"{report.indexed + report.earlier} of {report.found} pictures indexed into {where}{earlier} in"
        f" {report.seconds:.1f} s ({report.rate:.1f}/s)" + (f"; failed: {codes}" if codes else "")
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
    text += "".join(f"; {verdict.text}" for verdict in verdicts)
    if run.out.json_lines or not run.out.is_terminal:
        run.out.log().info(
            "indexed",
            indexed=report.indexed,
            earlier=report.earlier,
            found=report.found,
            failed={str(code): count for code, count in report.failed.items()},
            skipped=report.skipped,
            duplicates=report.duplicates,
            incomplete=report.incomplete,
            seconds=round(report.seconds, 2),
            stopped=report.stopped,
            said=[verdict.text for verdict in verdicts],
            reconciled=verdicts[-1].agrees if verdicts else None,
        )
    if not run.out.json_lines:
        run.out.line(text)
