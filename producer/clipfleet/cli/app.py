"""The command tree. Importing it must stay cheap: each command imports what it needs when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clipfleet.cli.commands import (
    bulk_import,
    dead,
    delete,
    demo,
    doctor,
    embed,
    export,
    index,
    model,
    operators,
    pipeline,
    search,
    status,
    up,
    worker,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "run"]

app = typer.Typer(
    name="clipfleet",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
    if wanted:
        from clipfleet.cli.version import version  # noqa: PLC0415

        typer.echo(f"clipfleet {version()}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Pictures and words to vectors, on a fleet of workers behind Redis; search them in Milvus.

    \b
    Start here:
      clipfleet up                          Redis, Milvus Lite and a worker on this machine
      clipfleet index DIR                   in another terminal: index a folder of pictures
      clipfleet search "a red heart"        and find them by words

    A command finds its fleet by flag, then environment (CLIPFLEET_REDIS_URL, REDIS_URL), then a running 'clipfleet
    up' here or in a parent folder, then localhost. Exit codes: 0 all well, 1 failed, 2 wrong usage, 3 finished but
    some items failed, 4 queue full or unavailable, 130 interrupted.
    """  # noqa: D301  \b is click's mark for "do not re-wrap"


for group in (
    up,
    worker,
    index,
    search,
    embed,
    delete,
    export,
    bulk_import,
    status,
    dead,
    doctor,
    model,
    operators,
    pipeline,
    demo,
):
    group.register(app)


def run(args: Sequence[str]) -> int:
    """Run ``args``; returns the exit code."""
    try:
        app(args=list(args), prog_name="clipfleet")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
