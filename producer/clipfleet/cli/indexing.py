"""One indexing run of the command line: where what became of each is kept, what is shown, and the exit code."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.cli.client import check_worker
from clipfleet.cli.declaring import check_columns, declare, fields_of
from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.failures import Failures
from clipfleet.cli.index_manifest import open_manifest
from clipfleet.cli.index_report import Shown, summary
from clipfleet.cli.milvus import opened
from clipfleet.cli.reindexing import begin, settle, switch_run
from clipfleet.index import Meter, Sending, open_sources, typed
from clipfleet.index.sinks import SinkError
from clipfleet.index.sync import Unseen, Visited
from clipfleet.schemas.keys import Lane
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from clipfleet.cli.reconciling import Verdict
    from clipfleet.cli.reindexing import Reindex
    from clipfleet.cli.run import Run
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Manifest, Outcome, Processes, Report, Source
    from clipfleet.index.sinks import Dtype, FolderSink
    from clipfleet.producer import Client

__all__ = ["Files", "Plan", "run_index"]


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
        fields: metadata keys of declared types, which a new collection keeps in columns.
        reindex: the rows go into a new collection behind an alias; None = into the one that is named.
        dedupe: whether a picture that comes under several ids is sent once.
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
    fields: Mapping[str, str] = field(default_factory=dict)
    reindex: Reindex | None = None
    dedupe: bool = False


def run_index(run: Run, settings: Settings, sources: Sequence[Path | Source], plan: Plan) -> int:
    """Index ``sources`` and report; the exit code."""
    found = [each for source in sources for each in (open_sources([source]) if isinstance(source, Path) else [source])]
    for about in filter(None, (each.about for each in found)):
        run.out.note(about)
    asked = set(plan.fields)
    check_worker(settings)
    with ExitStack() as stack:
        manifest = open_manifest(run, plan, stack)
        if plan.reindex is not None and manifest is not None:
            plan = begin(run, settings, plan, plan.reindex, manifest)
        elif plan.fields and plan.files is None:
            _declare(settings, plan)
        given = typed(found, plan.fields)
        try:
            sink = stack.enter_context(_sink(plan.files)) if plan.files is not None else None
            indexing = _Indexing(run, settings, plan, manifest, sink)
            code = indexing.go(given)
        except SinkError as error:
            raise CliError(str(error)) from None
    if unmet := asked.difference(*(source.met for source in given)):
        run.out.note(f"no picture has {', '.join(sorted(unmet))}: look at how it is spelled")
    if indexing.switched and plan.reindex is not None and plan.manifest is not None:
        settle(run, plan.reindex, plan.manifest)
    return code


def _declare(settings: Settings, plan: Plan) -> None:
    fields = fields_of(plan.fields)
    with opened(settings) as store:
        check_columns(store, plan.sending.collection, fields)
        declare(store, settings, plan.sending.collection, fields)


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
        self._unseen = Unseen()
        self.switched = False

    def go(self, sources: Sequence[Source]) -> int:
        """Index and reconcile; the exit code."""
        from clipfleet.cli.items import Tally  # noqa: PLC0415
        from clipfleet.cli.progress import Progress  # noqa: PLC0415
        from clipfleet.index import count_all  # noqa: PLC0415

        run, tally = self._run, Tally(self._run.out)
        with ExitStack() as stack:
            visited = stack.enter_context(Visited()) if self._plan.sync else None
            if visited is not None:
                sources = visited.over(sources)
            if self._plan.reindex is not None:
                sources = self._unseen.over(sources)
            client = stack.enter_context(self._client())
            with ExitStack() as shown:
                failures = shown.enter_context(Failures(self._failures_file()))
                progress = shown.enter_context(
                    Progress(run.out, "indexing", lambda: count_all(sources), lambda: self._meter.bottleneck)
                )
                sink = Shown(run, progress, failures)

                def on_outcome(outcome: Outcome) -> None:
                    if not outcome.same_as:
                        tally.add(outcome.error)
                    sink.add(outcome)

                try:
                    report = self.index(client, sources, on_outcome)
                except KeyboardInterrupt:
                    shown.close()
                    self._interrupted(sink)
                    raise
            sink.end()
            verdicts = [self._synced(visited, report, client, sources)] if visited is not None else []
            if (report.found or report.duplicates) and not report.stopped:
                verdicts += [self._reconciled(client, sources)]
            if self._plan.dedupe and self._manifest is not None:
                verdicts.insert(0, self._listed(self._manifest, report))
        found = [verdict for verdict in verdicts if verdict is not None]
        switch = self._switch(report, found)
        summary(run, report, self._where, found, switch)
        code = tally.end()
        failed = report.stopped or not (report.indexed or report.earlier or report.duplicates or code)
        if failed or (switch is not None and not switch.agrees):
            return Exit.FAILED
        return code or (Exit.PARTIAL if any(verdict.agrees is False for verdict in found) else Exit.OK)

    def _switch(self, report: Report, found: Sequence[Verdict]) -> Verdict | None:
        if self._plan.reindex is None or self._manifest is None:
            return None
        reconciled = found[-1] if found else None
        verdict = switch_run(
            self._settings, self._plan, self._plan.reindex, self._manifest, report, reconciled, self._unseen.why
        )
        self.switched = verdict.agrees is True
        return verdict

    def _synced(
        self, visited: Visited, report: Report, client: Client | Processes, sources: Sequence[Source]
    ) -> Verdict | None:
        from clipfleet.cli.syncing import sync_run  # noqa: PLC0415
        from clipfleet.index.reconcile import alone  # noqa: PLC0415

        if self._manifest is None:
            return None
        verdict = sync_run(self._settings, self._plan.sending.collection, self._manifest, visited, report)
        # Whose kept picture has just left takes its place.
        if not report.stopped and self._manifest.duplicates.leave_alone(run=self._manifest.run):
            again = self.index(client, alone(sources, self._manifest), None)
            if again.failed or again.stopped:
                why = again.stopped or ", ".join(again.failed)
                text = f"{again.failed.total():,} whose picture has left with another id could not be sent: {why}"
                return replace(verdict, agrees=False, text=f"{verdict.text}; {text}; run it again")
        return verdict

    def _listed(self, manifest: Manifest, report: Report) -> Verdict | None:
        from clipfleet.cli.duplicates import list_duplicates  # noqa: PLC0415
        from clipfleet.cli.reconciling import Verdict  # noqa: PLC0415

        where = list_duplicates(manifest)
        return Verdict(None, f"{where} tells whose") if report.duplicates else None

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
            dedupe=self._plan.dedupe and self._manifest is not None,
        )

    @property
    def _where(self) -> str:
        files = self._plan.files
        return repr(self._plan.sending.collection) if files is None else str(files.out)

    def _failures_file(self) -> Path | None:
        if self._plan.failures is not None or self._manifest is None:
            return self._plan.failures
        return self._manifest.path.with_suffix(".failures.jsonl")

    def _interrupted(self, sink: Shown) -> None:
        resumes = "goes on from here" if self._manifest is not None else "replaces and never doubles"
        self._run.out.note(
            f"{counted(sink.indexed, 'picture')} indexed into {self._where} and {sink.failed:,} failed until then; the"
            f" same command {resumes}"
        )
