"""``clipfleet export``: a collection read back into files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.file_options import OUT, TO, Dtype, Kind, Rows, Vectors
from clipfleet.cli.run import Run, command
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from clipfleet.index.sinks import FolderSink
    from clipfleet.store import CollectionInfo, Store

__all__ = ["register"]


_Collection = Annotated[str, typer.Argument(metavar="COLLECTION", help="The collection.", show_default=False)]
_To = Annotated[Kind, TO]
_Out = Annotated[Path, OUT]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "export",
        examples=(
            "clipfleet export images --to npy --out vectors",
            "clipfleet export shop --to parquet --out shop --milvus-uri http://milvus:19530",
        ),
    )(export)


def export(
    run: Run,
    collection: _Collection,
    *,
    to: _To,
    out: _Out,
    rows_per_part: Rows = 10_000,
    dtype: Vectors = Dtype.FLOAT32,
) -> int:
    """Read a collection back into numbered part files.

    Rows come in the order of their ids. A part is whole or not there, and none is written twice: killed or interrupted,
    the same command goes on behind the last one. It asks Milvus itself and needs no worker.
    """
    from clipfleet.cli.milvus import opened  # noqa: PLC0415
    from clipfleet.index.sinks import SinkError, open_sink  # noqa: PLC0415

    with run.fleet(store=True, worker=False) as settings, opened(settings) as store:
        try:
            info = _described(store, collection)
            with open_sink(
                to.value, out, dtype=dtype.value, rows_per_part=rows_per_part, origin=f"collection {info.name}"
            ) as sink:
                earlier = sum(1 for _ in sink.held())
                changed = _changed(run, store, info, sink, dtype) if earlier else 0
                written = _copy(run, store, info, sink, earlier)
            stored = store.count(info.name)
            return _told(run, _Copied(collection, out, earlier, written, sink.parts, stored, changed))
        except SinkError as error:
            raise CliError(str(error)) from None


def _described(store: Store, collection: str) -> CollectionInfo:
    """Of an alias: the collection that it stands for, which is read to its end whatever becomes of the alias."""
    found = store.describe(collection)
    if found is None:
        there = ", ".join(sorted(info.name for info in store.list_collections())) or "none"
        raise CliError(f"there is no collection {collection!r}", hint=f"Collections there: {there}")
    if not found.fingerprint:
        raise CliError(f"the collection {collection!r} is no collection of clipfleet")
    return replace(found, rows=store.count(found.name))


def _changed(run: Run, store: Store, info: CollectionInfo, sink: FolderSink, dtype: Dtype) -> int:
    """How many rows of the parts that are there the collection has no more, or otherwise, and how many it has besides.

    Both are in the order of their ids, and one of each is held at a time.
    """
    run.out.step(f"comparing {counted(sink.parts, 'part that is', 'parts that are')} there with the collection")
    close = 1e-3 if dtype is Dtype.FLOAT16 else 1e-5  # a store may give other last bits
    rows = (row for page in store.scan(info.name) for row in page)
    changed, row = 0, next(rows, None)
    for id_, vector in sink.rows():
        while row is not None and row.id < id_:
            changed, row = changed + 1, next(rows, None)
        if row is None or row.id != id_:
            changed += 1
            continue
        far = len(row.vector) != len(vector) or abs(row.vector - vector).max() > close * abs(row.vector).max()
        changed, row = changed + bool(far), next(rows, None)
    return changed


def _copy(run: Run, store: Store, info: CollectionInfo, sink: FolderSink, earlier: int) -> int:
    """Copy the rows behind the sink's last one; how many."""
    from clipfleet.cli.progress import Progress  # noqa: PLC0415
    from clipfleet.index.sinks import SinkRow  # noqa: PLC0415

    if (after := sink.last()) is not None:
        run.out.note(f"{counted(earlier, 'row')} in {counted(sink.parts, 'part')} are there: going on behind {after!r}")
    written = 0
    with Progress(run.out, "exporting", lambda: range(max(0, (info.rows or 0) - earlier))) as progress:
        for page in store.scan(info.name, after=after or ""):
            sink.write([SinkRow(row.id, row.vector, row.metadata) for row in page], model=info.fingerprint)
            written += len(page)
            progress.advance(failed=False, by=len(page))
    return written


@dataclass(frozen=True, slots=True)
class _Copied:
    """What became of an export.

    Attributes:
        collection: of which.
        out: where to.
        earlier: rows that an earlier run had written.
        written: rows that this one has.
        parts: whole parts there are now.
        stored: rows of the collection at the end.
        changed: rows of earlier parts that are not as they were in the collection, see ``_changed``.
    """

    collection: str
    out: Path
    earlier: int
    written: int
    parts: int
    stored: int
    changed: int


def _told(run: Run, copied: _Copied) -> int:
    rows = copied.earlier + copied.written
    whole = rows == copied.stored and not copied.changed
    if run.out.json_lines:
        run.out.json(
            {
                "input": copied.collection,
                "ok": whole and rows > 0,
                "rows": rows,
                "written": copied.written,
                "parts": copied.parts,
                "stored": copied.stored,
                "changed": copied.changed,
                "out": str(copied.out),
            }
        )
    else:
        run.out.line(
            f"{counted(rows, 'row')} of {copied.collection!r} in {counted(copied.parts, 'part')} in {copied.out}"
            + (f", {copied.written:,} of them written now" if copied.earlier else "")
        )
    if not rows:
        run.out.note("the collection has no rows")
        return Exit.FAILED
    if not whole:
        now = f"{counted(copied.stored, 'row')} now"
        if copied.changed:
            now += (
                f", and {copied.changed:,} of the parts that were there have left it, are others, or came between them"
            )
        run.out.note(
            f"the collection has {now}: it was written to meanwhile, or since the folder was begun; export it into an"
            " empty folder"
        )
        return Exit.PARTIAL
    return Exit.OK
