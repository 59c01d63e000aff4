"""``clipfleet import``: part files into a collection, by Milvus' bulk import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.run import Collection, Run, command, usage
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from clipfleet.index.bulk import Imported

__all__ = ["register"]

_Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="FOLDER...",
        help="Folders of 'clipfleet index --to parquet', one for each host; of one id the last row counts.",
        show_default=False,
    ),
]
_Staging = Annotated[
    str,
    typer.Option(
        "--staging",
        metavar="PLACE",
        help="Where Milvus reads files: s3://BUCKET/FOLDER in the bucket of its data, or a folder of its machine.",
        show_default=False,
    ),
]
_SeenAs = Annotated[
    str | None,
    typer.Option(
        "--staging-seen-as",
        metavar="PATH",
        help="What Milvus calls that place, where it differs: the folder's path in its container.",
        show_default=False,
    ),
]
_Failures = Annotated[
    Path | None,
    typer.Option(
        "--failures", metavar="FILE", help="Write each row that cannot be stored, as JSON lines.", show_default=False
    ),
]
_Fresh = Annotated[
    bool, typer.Option("--fresh", help="Forget what an earlier import with that staging place has done.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "import",
        examples=(
            "clipfleet import host1 host2 host3 --collection images_2027 --staging s3://milvus-bucket/staging",
            "clipfleet import vectors --staging /srv/milvus/staging --staging-seen-as /var/lib/milvus/staging",
        ),
    )(import_)


def import_(
    run: Run,
    folders: _Folders,
    *,
    staging: _Staging,
    collection: Collection = "images",
    staging_seen_as: _SeenAs = None,
    failures: _Failures = None,
    fresh: _Fresh = False,
) -> int:
    """Bring part files into a new collection by Milvus' bulk import.

    For millions of rows: none passes through a worker. The collection is made for the model of the vectors, and must be
    empty; files are written to the staging place, imported by one job each, counted in the collection, and removed.
    Killed or interrupted, the same command goes on. It needs no worker. Milvus Lite has no import.
    """
    from clipfleet.cli.importing import run_import  # noqa: PLC0415
    from clipfleet.index import SourceError  # noqa: PLC0415
    from clipfleet.index.bulk import StagingError, open_staging  # noqa: PLC0415
    from clipfleet.index.sinks import SinkError  # noqa: PLC0415

    try:
        place = open_staging(staging, staging_seen_as)
    except (SourceError, StagingError) as error:
        raise usage(str(error)) from None
    with run.fleet(store=True, worker=False) as settings:
        try:
            done = run_import(run, settings, folders, collection, place, failures, fresh=fresh)
        except (SinkError, StagingError) as error:
            raise CliError(str(error)) from None
    return _told(run, collection, done)


def _told(run: Run, collection: str, done: Imported) -> int:
    if run.out.json_lines:
        run.out.json(
            {
                "input": collection,
                "ok": done.agrees and done.rows > 0,
                "rows": done.rows,
                "replaced": done.replaced,
                "failed": done.failed,
                "files": done.files,
                "stored": done.found,
            }
        )
    else:
        replaced = f"; {counted(done.replaced, 'earlier row')} of the same ids left out" if done.replaced else ""
        failed = f"; {counted(done.failed, 'row')} cannot be stored" if done.failed else ""
        jobs = counted(done.files, "job")
        run.out.line(f"{counted(done.rows, 'row')} imported into {collection!r} by {jobs}{replaced}{failed}")
    if not done.agrees:
        run.out.note(
            f"NOT reconciled: the collection counts {counted(done.found, 'row')}. "
            + (
                "Milvus may yet be loading them: run it again, and if that does not help, drop it and use --fresh"
                if done.found < done.rows
                else "Somebody else has written into it, or rows are there twice: drop it and import again with --fresh"
            )
        )
        return Exit.FAILED
    if not done.rows:
        return Exit.FAILED
    return Exit.PARTIAL if done.failed else Exit.OK
