"""``clipfleet delete``: rows out of a collection, by their ids or by a filter."""

from __future__ import annotations

from typing import Annotated

import typer

from clipfleet.cli.run import Collection, Run, command, usage

__all__ = ["register"]

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="The ids of the rows; '-': lines of stdin.", show_default=False),
]
_Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="EXPR",
        help='All rows whose metadata fits: year < 2020 and tag == "x".',
        show_default=False,
    ),
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a filter deletes.")]
_Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "delete",
        examples=(
            "clipfleet delete cats/1.jpg cats/2.jpg",
            "clipfleet delete --collection shop - < sold.txt",
            "clipfleet delete --filter 'year < 2020' --dry-run",
            "clipfleet delete --filter 'tag == \"draft\"' --yes --json",
        ),
    )(delete)


def delete(
    run: Run,
    ids: _Ids = None,
    *,
    collection: Collection = "images",
    where: _Filter = None,
    yes: _Yes = False,
    dry_run: _Dry = False,
) -> int:
    """Delete rows of a collection by their ids, or all that a filter fits.

    Ids that have no row are said, and are no failure: the same command may be run again, whatever ended it. A filter
    first counts what it fits and asks; where nobody can be asked it needs --yes.
    """
    from clipfleet.cli.deleting import by_filter, by_ids  # noqa: PLC0415

    if (where is None) == (not ids):
        raise usage(
            "give either ids or --filter", "clipfleet delete ID..., clipfleet delete - < ids.txt, or --filter EXPR"
        )
    with run.fleet(store=True) as settings:
        if where is not None:
            return by_filter(run, settings, collection, where, yes=yes, dry_run=dry_run)
        return by_ids(run, settings, collection, ids or [], dry_run=dry_run)
