"""``clipfleet index``: pictures of folders, shards, tables and more into a collection, or into files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clipfleet.cli.file_options import OUT, TO, Dtype, Kind, Rows, Vectors
from clipfleet.cli.run import Collection, Run, collection_name, command, usage
from clipfleet.schemas.keys import Lane

if TYPE_CHECKING:
    from clipfleet.index import Columns, Part, Source

__all__ = ["register"]


_Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Folders, files, 'patterns/**', shards (.tar, .tar.gz), zips, tables (.csv, .tsv, .jsonl, .parquet),"
        " videos (.mp4, .mkv, …), stores (s3://BUCKET/FOLDER).",
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
    typer.Option(
        "--failures",
        metavar="FILE",
        help="Write each failed picture with its error code, as JSON lines. Default: beside the manifest.",
        show_default=False,
    ),
]
_Manifest = Annotated[
    Path | None,
    typer.Option(
        "--manifest",
        metavar="FILE",
        help="What became of each picture; the same command goes on from it. Default: one for each corpus and"
        " collection, in ./.clipfleet/index.",
        show_default=False,
    ),
]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Forget what the manifest knows: send everything again.")]
_Sync = Annotated[
    bool, typer.Option("--sync", help="Delete the rows of pictures that have left the sources since an earlier run.")
]
_Retry = Annotated[
    bool, typer.Option("--retry-failed", help="Send pictures again that failed of themselves in an earlier run.")
]
_Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be sent and taken out, and change nothing.")]
_Reconcile = Annotated[
    bool, typer.Option("--reconcile/--no-reconcile", help="Compare the store with the manifest at the end.")
]
_Dedupe = Annotated[
    bool, typer.Option("--dedupe", help="Send a picture once that comes under several ids: the others get no row.")
]
_Part = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Index part I of N, on each host another: every Nth shard file, and the pictures whose ids fall to it.",
        show_default=False,
    ),
]
_Send = Annotated[
    str | None,
    typer.Option(
        "--send",
        metavar="bytes|path|url",
        help="What travels: pictures, where workers read them (--root), or where they fetch them. Default: bytes,"
        " and the addresses of tables.",
        show_default=False,
    ),
]
_Roots = Annotated[
    list[str] | None,
    typer.Option(
        "--root",
        metavar="NAME=DIR",
        help="With --send path: DIR here is what workers know as NAME (worker --allow-root NAME=...). Repeatable.",
        show_default=False,
    ),
]

_Processes = Annotated[
    int, typer.Option("--processes", min=1, max=64, metavar="N", help="How many processes read, shrink and send.")
]
_Shrink = Annotated[
    int | None,
    typer.Option(
        "--shrink",
        min=0,
        metavar="PX",
        help="Pictures above 2 MiB are sent with this shorter side; 0: as they are. Default: 896.",
        show_default=False,
    ),
]
_Every = Annotated[
    float,
    typer.Option("--every-s", min=0, metavar="S", help="Of videos: a frame each S seconds; 0: every frame."),
]
_Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME:TYPE",
        help="Keep this metadata key in a column of a type (int, float, bool, str), where filters on it are quick;"
        " text is read as it. Repeatable; for a collection that is made by this run.",
        show_default=False,
    ),
]
_Reindex = Annotated[
    bool,
    typer.Option(
        "--reindex",
        help="Into a new collection; --collection is an alias, which stands for it once all is there.",
    ),
]
_Into = Annotated[
    str | None,
    typer.Option(
        "--into",
        metavar="NAME",
        callback=collection_name,
        help="With --reindex: the new collection. Default: the alias with the day and a short id.",
        show_default=False,
    ),
]
_MaxFailed = Annotated[
    str | None,
    typer.Option(
        "--max-failed",
        metavar="PART",
        help="With --reindex: how many may fail for the alias to be switched, 0.5% or 0.005. Default: 1%.",
        show_default=False,
    ),
]
_DropOld = Annotated[
    bool, typer.Option("--drop-old", help="With --reindex: drop the collection for which the alias stood.")
]


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
            "clipfleet index /mnt/photos --send path --root photos=/mnt/photos --shard 1/3",
            "clipfleet index ~/Pictures --to npy --out vectors",
            "clipfleet index 'films/*.mp4' --every-s 5",
            "clipfleet index s3://bucket/photos archive.zip",
            "clipfleet index products.csv --field price:float --field year:int --collection shop",
            "clipfleet index ~/Pictures --collection images_live --reindex --queue new-model",
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
    manifest: _Manifest = None,
    fresh: _Fresh = False,
    retry_failed: _Retry = False,
    sync: _Sync = False,
    dry_run: _Dry = False,
    reconcile: _Reconcile = True,
    dedupe: _Dedupe = False,
    shard: _Part = None,
    send: _Send = None,
    root: _Roots = None,
    shrink: _Shrink = None,
    processes: _Processes = 1,
    every_s: _Every = 1.0,
    to: Annotated[Kind | None, TO] = None,
    out: Annotated[Path | None, OUT] = None,
    rows_per_part: Rows = 10_000,
    dtype: Vectors = Dtype.FLOAT32,
    field: _Fields = None,
    reindex: _Reindex = False,
    into: _Into = None,
    max_failed: _MaxFailed = None,
    drop_old: _DropOld = False,
) -> int:
    """Index the pictures of folders, shards, zips, tables, videos and stores.

    A picture's id is its path below SOURCE, SHARD/KEY in a shard, and a column, the path or the address in a table: so
    indexing again replaces and never doubles. Hidden files are passed over; links are followed. What cannot be read or
    decoded is reported, and the rest goes on (exit code 3). Killed or interrupted, the same command goes on where it
    was; what is done and has not changed is not sent again.
    """
    from clipfleet.cli.declaring import parse_fields  # noqa: PLC0415
    from clipfleet.cli.dry_run import dry_run as tell  # noqa: PLC0415
    from clipfleet.cli.index_arguments import check_sync, how_to_send, part_of_n, shrink_px  # noqa: PLC0415
    from clipfleet.cli.index_manifest import corpus_of, default_manifest  # noqa: PLC0415
    from clipfleet.cli.indexing import Files, Plan, run_index  # noqa: PLC0415
    from clipfleet.cli.reindexing import reindexing  # noqa: PLC0415
    from clipfleet.index import Columns, Sending, SourceError  # noqa: PLC0415

    columns = Columns(url_column, path_column, id_column, path_root)
    try:
        part = None if shard is None else part_of_n(shard)
        opened = _open(sources, columns, part, every_s)
        sending = Sending(collection, *how_to_send(send, root or []), shrink_px(shrink))
    except SourceError as error:
        raise usage(str(error)) from None
    if sync:
        check_sync(sources, opened, part, forgets=to is not None or fresh, told_of_dedupe=dry_run and dedupe)
    if not reindex and (into is not None or max_failed is not None or drop_old):
        raise usage("--into, --max-failed and --drop-old go with --reindex")
    if reindex and (sync or to is not None or not reconcile or shard is not None):
        raise usage("--reindex goes with none of --sync, --to, --no-reconcile and --shard: it must see all to be there")
    asked = reindexing(collection, into, max_failed, sources, drop_old=drop_old) if reindex else None
    if (to is None) != (out is None):
        raise usage("--to and --out go together")
    if out is not None and fresh:
        raise usage(f"--fresh: its part files would stay; delete {out} instead")
    files = None if to is None or out is None else Files(to.value, out, dtype.value, rows_per_part)
    # Beside its part files: who moves or deletes these means both.
    own = None if out is None else out / "clipfleet.sqlite"
    corpus = corpus_of(sources, columns, shard)
    place = manifest or own or default_manifest(run, collection, corpus)
    if asked is not None and manifest is None:
        # One of its own, which takes the place of that of ordinary runs in the end.
        asked = replace(asked, afterwards=place)
        place = default_manifest(run, collection, ["reindex", *corpus])
    plan = Plan(
        sending,
        lane,
        failures,
        place,
        named=manifest is not None,
        fresh=fresh,
        retry_failed=retry_failed,
        reconcile=reconcile,
        files=files,
        processes=processes,
        sync=sync,
        corpus=json.dumps(corpus),
        fields=parse_fields(field or ()),
        reindex=asked,
        dedupe=dedupe,
    )
    if dry_run:
        return tell(run, opened, plan)
    with run.fleet(store=files is None) as settings:
        return run_index(run, settings, opened, plan)


def _open(sources: list[str], columns: Columns, part: Part | None, every_s: float) -> list[Source]:
    from clipfleet.index import TABLE_SUFFIXES, Columns, open_sources, part_of  # noqa: PLC0415

    if not all(sources):
        # As a shell makes it of a variable that is not set; it would be the current folder.
        raise usage("one of the sources is empty: name a folder, a file or a pattern; '.' is the current folder")
    if columns != Columns() and not any(source.lower().endswith(TABLE_SUFFIXES) for source in sources):
        raise usage("columns and --path-root are for tables, and none of the sources is one")
    try:
        opened = open_sources(sources, columns, every_s=every_s)
    except FileNotFoundError as error:
        raise usage(f"{error}: no such file or folder") from None
    return opened if part is None else part_of(opened, part)
