"""``index --dry-run``: what would be sent, told without a fleet; of Milvus only what may stand against the run."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.cli.declaring import carried, check_columns, fields_of
from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.index_manifest import INTO, check_place
from clipfleet.cli.local import find_live
from clipfleet.cli.milvus import opened
from clipfleet.cli.reindexing import check_names
from clipfleet.cli.settings import load
from clipfleet.index import Failure, Item, Manifest, Skip, typed
from clipfleet.index.manifest import Todo, decide, signature
from clipfleet.index.sources import Seen
from clipfleet.index.sources.seen import Met
from clipfleet.schemas.errors import ClipfleetError, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.cli.indexing import Plan
    from clipfleet.cli.run import Run
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Source

__all__ = ["dry_run"]

_SHOWN_FAILURES: Final = 10
_SHOWN_KINDS: Final = 12


def dry_run(run: Run, sources: Sequence[Source], plan: Plan) -> int:
    """Count what ``sources`` hold by kind and by what would be done with it; the exit code, 3 where something fails."""
    for about in filter(None, (each.about for each in sources)):
        run.out.note(about)
    plan = _as_milvus_allows(run, plan)
    told = _Told(run, plan)
    for source in typed(sources, plan.fields):
        told.add(source)
    return told.end()


def _as_milvus_allows(run: Run, plan: Plan) -> Plan:
    """The plan with the columns that its collection would have.

    Raises:
        CliError: what the run itself would be refused with.
    """
    if plan.files is not None or (plan.reindex is None and not plan.fields):
        return plan
    asked = load(run.flags)
    local = run.flags.local or asked.source == "the default"
    settings = load(run.flags, live=find_live(Path.cwd())) if local else asked
    why = "which one it is is not known here (--milvus-uri)"
    if settings.milvus_uri is not None:
        try:
            return _checked(settings, plan)
        except CliError:
            raise
        except (ClipfleetError, ModuleNotFoundError) as error:
            why = str(error)
    run.out.note(f"Milvus could not be asked whether something of these names stands against it: {why}")
    return plan


def _checked(settings: Settings, plan: Plan) -> Plan:
    with opened(settings) as store:
        if plan.reindex is None:
            check_columns(store, plan.sending.collection, fields_of(plan.fields))
            return plan
        begun = ""
        if plan.manifest is not None and plan.manifest.exists() and not plan.fresh:
            with Manifest(plan.manifest) as manifest:
                begun = manifest.told(INTO)
        return replace(plan, fields=carried(check_names(store, plan.reindex, begun), plan.fields))


class _Told:
    """The counts."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self._out = run.out
        self._plan = plan
        # A manifest that is not there is not made for this.
        there = plan.manifest is not None and plan.manifest.exists() and not plan.fresh
        self._manifest = _opened(plan.manifest, plan) if there and plan.manifest is not None else None
        self._begun = "" if self._manifest is None else self._manifest.told(INTO)
        self._seen = Seen()
        self._contents = Seen()
        self._todo: Counter[Todo] = Counter()
        self._kinds: Counter[str] = Counter()
        self._skips: Counter[str] = Counter()
        self._failed = 0

    def add(self, source: Source) -> None:
        """One source."""
        for event in source.events(self._seen):
            match event:
                case Skip():
                    self._skips[event.reason] += event.count
                case Failure():
                    self._cannot_be_read(event.label, event.error)
                case Item():
                    self._kinds[_kind(event)] += 1
                    self._item(event)

    def end(self) -> int:
        """Say it."""
        self._seen.__exit__()
        self._contents.__exit__()
        if self._manifest is not None:
            self._manifest.close()
        figures = {
            "send": self._todo[Todo.SEND],
            "done": self._todo[Todo.LEAVE_DONE],
            "failed_before": self._todo[Todo.LEAVE_FAILED],
            "failed": self._failed,
            "duplicates": self._skips[Skip.DUPLICATE],
            "skipped": self._skips[Skip.OTHER],
        }
        kinds = dict(self._kinds.most_common(_SHOWN_KINDS))
        if self._out.json_lines:
            self._out.json({"dry_run": True, **figures, "kinds": kinds})
        else:
            self._out.line(
                f"{figures['send']:,} pictures would be sent to {self._where()};"
                f" {figures['done']:,} are done, {figures['failed_before']:,} failed before,"
                f" {figures['failed']:,} cannot be read, {figures['duplicates']:,} duplicates,"
                f" {figures['skipped']:,} other files"
            )
            if kinds:
                self._out.line("kinds: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()))
        if not self._todo.total() and not self._skips[Skip.DUPLICATE]:
            return Exit.FAILED
        return Exit.PARTIAL if self._failed else Exit.OK

    def _where(self) -> str:
        if (reindex := self._plan.reindex) is not None:
            name = self._begun or reindex.into
            return f"{'a new collection' if name is None else repr(name)} for the alias {reindex.alias!r}"
        return repr(self._plan.sending.collection)

    def _cannot_be_read(self, label: str, error: RequestFailed) -> None:
        self._failed += 1
        if self._failed <= _SHOWN_FAILURES:
            self._out.failed(label, error)

    def _item(self, item: Item) -> None:
        known = None if self._manifest is None else self._manifest.known(item.id)
        now = signature(item) if known is not None else b""
        todo = decide(known, now, retry_failed=self._plan.retry_failed)
        if todo is Todo.SEND and self._is_gone(item):
            return
        if self._plan.dedupe and todo is not Todo.LEAVE_FAILED:
            try:
                content = (known.content if known and known.signature == now else b"") or self._content(item)
            except RequestFailed as error:
                self._cannot_be_read(item.label, error)
                return
            if self._is_known(content) and todo is Todo.SEND and (known is None or known.has_no_row):
                self._skips[Skip.DUPLICATE] += 1
                return
        self._todo[todo] += 1

    def _is_gone(self, item: Item) -> bool:
        """Whether there is no such file, as a table may name some: then it is told as the run would tell it."""
        if not isinstance(item.picture, os.PathLike) or os.access(item.picture, os.R_OK):
            return False
        try:
            self._content(item)
        except RequestFailed as error:
            self._cannot_be_read(item.label, error)
            return True
        return False

    def _content(self, item: Item) -> bytes:
        return self._plan.sending.with_content(item)[1]

    def _is_known(self, content: bytes) -> bool:
        """Whether another picture has it, of this run or of an earlier one."""
        before = self._manifest is not None and bool(self._manifest.duplicates.kept(content, run=self._manifest.run))
        return self._contents.add(content.hex(), b"") is not Met.NEW or before


def _opened(path: Path, plan: Plan) -> Manifest | None:
    """What the run itself would go by; None where it would forget that."""
    manifest = Manifest(path)
    try:
        if plan.named:
            check_place(manifest, plan)
        # Without a collection that was begun it is of a reindexing that has ended: another one sends all of it.
        if plan.reindex is None or manifest.told(INTO):
            return manifest
    except BaseException:
        manifest.close()
        raise
    manifest.close()
    return None


def _kind(item: Item) -> str:
    if not isinstance(item.picture, bytes | os.PathLike):
        return "address"
    # A row of a table has the table's name and its line for a label.
    name = item.label if isinstance(item.picture, bytes) else os.fspath(item.picture)
    return os.path.splitext(name)[1].lower() or "no suffix"  # noqa: PTH122 - another Path costs ten times as much
