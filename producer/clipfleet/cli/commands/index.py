"""``clipfleet index``: pictures of folders, shards, tables and more into a collection, or into files."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clipfleet.cli.run import Collection, Run, command, usage
from clipfleet.schemas.keys import Lane

if TYPE_CHECKING:
    from clipfleet.index import Columns, Part, Send, Source

__all__ = ["register"]


class _Kind(StrEnum):
    """What files look like."""

    PARQUET = "parquet"
    NPY = "npy"


class _Dtype(StrEnum):
    """What vectors in files are made of."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


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
_Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")]
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
_To = Annotated[
    _Kind | None,
    typer.Option(
        "--to",
        help="Vectors into part files below --out, not into a collection. npy: clip-retrieval's layout; parquet: id,"
        " vector, metadata.",
        show_default=False,
    ),
]
_Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to, with --to.", show_default=False)]
_Rows = Annotated[int, typer.Option("--rows-per-part", min=1, metavar="N", help="Rows of one part file.")]
_Float = Annotated[_Dtype, typer.Option("--dtype", help="Of vectors in files; float16 is half as large.")]


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
    to: _To = None,
    out: _Out = None,
    rows_per_part: _Rows = 10_000,
    dtype: _Float = _Dtype.FLOAT32,
) -> int:
    """Index the pictures of folders, shards, zips, tables, videos and stores.

    A picture's id is its path below SOURCE, SHARD/KEY in a shard, and a column, the path or the address in a table: so
    indexing again replaces and never doubles. Hidden files are passed over; links are followed. What cannot be read or
    decoded is reported, and the rest goes on (exit code 3). Killed or interrupted, the same command goes on where it
    was; what is done and has not changed is not sent again.
    """
    from clipfleet.cli.dry_run import dry_run as tell  # noqa: PLC0415
    from clipfleet.cli.indexing import Files, Plan, run_index  # noqa: PLC0415
    from clipfleet.index import Columns, Sending, SourceError  # noqa: PLC0415

    columns = Columns(url_column, path_column, id_column, path_root)
    try:
        part = None if shard is None else _part(shard)
        opened = _open(sources, columns, part, every_s)
        sending = Sending(collection, *_sending(send, root or []), _shrink_px(shrink))
    except SourceError as error:
        raise usage(str(error)) from None
    if sync:
        if to is not None or dry_run or fresh:
            raise usage("--sync goes with none of --to, --dry-run and --fresh")
        _check_sync(sources, opened, part)
    if (to is None) != (out is None):
        raise usage("--to and --out go together")
    if out is not None and fresh:
        raise usage(f"--fresh: its part files would stay; delete {out} instead")
    files = None if to is None or out is None else Files(to.value, out, dtype.value, rows_per_part)
    # Beside its part files: who moves or deletes these means both.
    own = None if out is None else out / "clipfleet.sqlite"
    corpus = _corpus(sources, columns, shard)
    plan = Plan(
        sending,
        lane,
        failures,
        manifest or own or _default_manifest(run, collection, corpus),
        named=manifest is not None,
        fresh=fresh,
        retry_failed=retry_failed,
        reconcile=reconcile,
        files=files,
        processes=processes,
        sync=sync,
        corpus=json.dumps(corpus),
        dedupe=dedupe,
    )
    if dry_run:
        return tell(run, opened, plan)
    with run.fleet(store=files is None) as settings:
        return run_index(run, settings, opened, plan)


def _open(sources: list[str], columns: Columns, part: Part | None, every_s: float) -> list[Source]:
    from clipfleet.index import TABLE_SUFFIXES, Columns, open_sources, part_of  # noqa: PLC0415

    if columns != Columns() and not any(source.lower().endswith(TABLE_SUFFIXES) for source in sources):
        raise usage("columns and --path-root are for tables, and none of the sources is one")
    try:
        opened = open_sources(sources, columns, every_s=every_s)
    except FileNotFoundError as error:
        raise usage(f"{error}: no such file or folder") from None
    return opened if part is None else part_of(opened, part)


def _check_sync(sources: list[str], opened: list[Source], part: Part | None) -> None:
    """Refuse what would have rows deleted whose pictures are there."""
    from clipfleet.index.part import by_file  # noqa: PLC0415
    from clipfleet.index.sources.folder import is_pattern  # noqa: PLC0415
    from clipfleet.index.sources.remote import is_remote  # noqa: PLC0415

    if part is not None and any(map(by_file, opened)):
        # One host would delete what another one has just indexed.
        raise usage("--sync goes with --shard for folders and tables alone: other hosts take what a new file displaces")
    if any(is_remote(source) and is_pattern(source) for source in sources):
        # fsspec's glob leaves out what it cannot list, and says nothing.
        raise usage("--sync: of a pattern in a store some may be missing unsaid; name the folder instead")


def _part(text: str) -> Part:
    from clipfleet.index import Part, SourceError  # noqa: PLC0415

    try:
        return Part.parse(text)
    except SourceError as error:
        raise usage(f"--shard {error}") from None


def _shrink_px(asked: int | None) -> int:
    from clipfleet.index.shrink import SHRINK_PX, can_shrink  # noqa: PLC0415

    if can_shrink():
        return SHRINK_PX if asked is None else asked
    if asked:
        raise usage("--shrink needs Pillow", 'pip install "clipfleet[index]"')
    return 0


def _sending(send: str | None, given: list[str]) -> tuple[Send | None, dict[str, Path]]:
    from clipfleet.index import Send  # noqa: PLC0415

    if send not in {None, *Send}:
        raise usage(f"--send {send}: one of {', '.join(Send)}")
    roots: dict[str, Path] = {}
    for each in given:
        name, equals, folder = each.partition("=")
        if not name or not equals or "/" in name or ":" in name or not Path(folder).is_dir():
            raise usage(f"--root {each}: NAME=DIR, where DIR is a folder of this machine")
        roots[name] = Path(folder)
    if (send == Send.PATH) != bool(roots):
        raise usage("--send path and --root NAME=DIR go together")
    return (None if send is None else Send(send)), roots


def _corpus(sources: list[str], columns: Columns, shard: str | None) -> list[object]:
    """The same for the same sources and options that pick items; how they travel changes nothing."""
    places = [os.path.abspath(source) for source in sources]  # noqa: PTH100 - Path drops what a pattern ends in
    root = None if columns.root is None else str(columns.root.absolute())
    return [places, [columns.url, columns.path, columns.id, root], shard]


def _default_manifest(run: Run, collection: str, corpus: list[object]) -> Path:
    """The same for the same fleet and corpus."""
    from clipfleet.cli.local import FOLDER, find_live  # noqa: PLC0415
    from clipfleet.cli.settings import load, redacted  # noqa: PLC0415
    from clipfleet.index import manifest_name  # noqa: PLC0415

    asked = load(run.flags)
    # A local fleet is at other ports each time it starts.
    live = run.flags.local or (asked.source == "the default" and find_live(Path.cwd()) is not None)
    fleet = ["local"] if live else [redacted(asked.redis_url), asked.queue, asked.prefix]
    return Path(FOLDER) / "index" / manifest_name(collection, fleet, *corpus)
