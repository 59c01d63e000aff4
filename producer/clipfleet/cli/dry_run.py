"""``index --dry-run``: what would be sent and taken out, told without a fleet, and without a change to anything."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from clipfleet.cli.dry_milvus import Milvus, ask_milvus
from clipfleet.cli.errors import Exit
from clipfleet.cli.index_manifest import INTO, check_corpus, check_place
from clipfleet.cli.syncing import MOST_ID_BYTES
from clipfleet.index import Failure, Item, Manifest, Skip, typed
from clipfleet.index.manifest import Todo, decide, signature
from clipfleet.index.sources import Seen
from clipfleet.index.sources.seen import Met
from clipfleet.index.sync import Visited
from clipfleet.schemas.errors import RequestFailed
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from clipfleet.cli.indexing import Plan
    from clipfleet.cli.run import Run
    from clipfleet.index import Source
    from clipfleet.index.states import Known

__all__ = ["dry_run"]

_SHOWN_FAILURES: Final = 10
_SHOWN_KINDS: Final = 12
# Why a picture would be sent.
_NEW: Final = "new"
_CHANGED: Final = "changed"
_AGAIN: Final = "again"


def dry_run(run: Run, sources: Sequence[Source], plan: Plan) -> int:
    """Count what ``sources`` hold by kind and by what would be done with it; the exit code, 3 where something fails."""
    for about in filter(None, (each.about for each in sources)):
        run.out.note(about)
    milvus = ask_milvus(run, plan)
    with ExitStack() as stack:
        told = _Told(run, milvus, stack.enter_context(Visited()) if plan.sync else None)
        for source in typed(sources, milvus.plan.fields):
            told.add(source)
        return told.end()


class _Told:
    """The counts."""

    def __init__(self, run: Run, milvus: Milvus, visited: Visited | None) -> None:
        self._out = run.out
        self._milvus = milvus
        self._visited = visited
        self._plan = plan = milvus.plan
        # A manifest that is not there is not made for this.
        there = plan.manifest is not None and plan.manifest.exists() and not plan.fresh
        self._manifest = _opened(plan.manifest, plan) if there and plan.manifest is not None else None
        self._begun = "" if self._manifest is None else self._manifest.told(INTO)
        self._seen = Seen()
        self._contents = Seen()
        self._todo: Counter[Todo] = Counter()
        self._sent: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._skips: Counter[str] = Counter()
        self._failed = 0

    def add(self, source: Source) -> None:
        """One source."""
        if self._visited is not None:
            (source,) = self._visited.over([source])
        for event in source.events(self._seen):
            match event:
                case Skip():
                    self._skips[event.reason] += event.count
                case Failure():
                    self._fails(event.label, event.error)
                case Item():
                    self._kinds[_kind(event)] += 1
                    self._item(event)

    def end(self) -> int:
        """Say it."""
        self._seen.__exit__()
        self._contents.__exit__()
        figures = {
            "send": self._todo[Todo.SEND],
            "new": self._sent[_NEW],
            "changed": self._sent[_CHANGED],
            "again": self._sent[_AGAIN],
            "done": self._todo[Todo.LEAVE_DONE],
            "failed_before": self._todo[Todo.LEAVE_FAILED],
            "failed": self._failed,
            "duplicates": self._skips[Skip.DUPLICATE],
            "skipped": self._skips[Skip.OTHER],
        }
        left = self._left()
        if self._manifest is not None:
            self._manifest.close()
        kinds = dict(self._kinds.most_common(_SHOWN_KINDS))
        if self._out.json_lines:
            gone = {} if self._visited is None else {"deleted": left, "doubt": self._visited.doubt}
            self._out.json({"dry_run": True, **figures, **gone, "kinds": kinds})
        else:
            self._say(figures, left)
            if kinds:
                self._out.line("kinds: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()))
        if not self._todo.total() and not self._skips[Skip.DUPLICATE]:
            return Exit.FAILED
        doubt = self._visited is not None and self._visited.doubt
        return Exit.PARTIAL if self._failed or doubt else Exit.OK

    def _say(self, figures: Mapping[str, int], left: int) -> None:
        why = "" if self._manifest is None else ", ".join(f"{figures[each]:,} {each}" for each in (_NEW, _CHANGED))
        if why and figures["again"]:
            why += f", {figures['again']:,} once more"
        text = (
            f"{counted(figures['send'], 'picture')} would be sent to {self._where()}{f' ({why})' if why else ''};"
            f" {counted(figures['done'], 'is', 'are')} done, {figures['failed_before']:,} failed before,"
            f" {figures['failed']:,} would fail, {counted(figures['duplicates'], 'duplicate')},"
            f" {counted(figures['skipped'], 'other file')}"
        )
        if self._visited is not None:
            text += (
                f"; nothing would be taken out, since not everything could be seen: {self._visited.doubt}"
                if self._visited.doubt
                else f"; {counted(left, 'that has left', 'that have left')} would be taken out"
            )
        self._out.line(text)

    def _left(self) -> int:
        """How many rows would be deleted: of what the manifest knows, and the sources have no more."""
        if self._visited is None or self._manifest is None:
            return 0
        if (rows := self._milvus.rows(self._gone(self._visited, self._manifest))) is not None:
            return rows
        known = sum(len(page) for page in self._gone(self._visited, self._manifest))
        if known:
            self._out.note("Milvus was not asked which of those that have left have a row: all of them are counted")
        return known

    def _gone(self, visited: Visited, manifest: Manifest) -> Iterator[list[str]]:
        for page in visited.gone(manifest):
            yield [id_ for id_ in page if self._may_have_row(id_)]

    def _may_have_row(self, id_: str) -> bool:
        known = None if self._manifest is None else self._manifest.known(id_)
        return known is not None and not known.has_no_row and len(id_.encode()) <= MOST_ID_BYTES

    def _where(self) -> str:
        if (reindex := self._plan.reindex) is not None:
            name = self._begun or reindex.into
            return f"{'a new collection' if name is None else repr(name)} for the alias {reindex.alias!r}"
        return repr(self._plan.sending.collection)

    def _fails(self, label: str, error: RequestFailed) -> None:
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
                self._fails(item.label, error)
                return
            if self._is_known(content) and todo is Todo.SEND and (known is None or known.has_no_row):
                self._skips[Skip.DUPLICATE] += 1
                return
        if todo is Todo.SEND:
            if (refusal := self._milvus.refusal(item)) is not None:
                self._fails(item.label, refusal)
                return
            self._sent[_way(known, now)] += 1
        self._todo[todo] += 1

    def _is_gone(self, item: Item) -> bool:
        """Whether there is no such file, as a table may name some: then it is told as the run would tell it."""
        if not isinstance(item.picture, os.PathLike) or os.access(item.picture, os.R_OK):
            return False
        try:
            self._content(item)
        except RequestFailed as error:
            self._fails(item.label, error)
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
            check_corpus(manifest, plan)
        # Without a collection that was begun it is of a reindexing that has ended: another one sends all of it.
        if plan.reindex is None or manifest.told(INTO):
            return manifest
    except BaseException:
        manifest.close()
        raise
    manifest.close()
    return None


def _way(known: Known | None, now: bytes) -> str:
    if known is None or known.has_no_row:
        return _NEW
    return _CHANGED if known.signature != now else _AGAIN


def _kind(item: Item) -> str:
    if not isinstance(item.picture, bytes | os.PathLike):
        return "address"
    # A row of a table has the table's name and its line for a label.
    name = item.label if isinstance(item.picture, bytes) else os.fspath(item.picture)
    return os.path.splitext(name)[1].lower() or "no suffix"  # noqa: PTH122 - another Path costs ten times as much
