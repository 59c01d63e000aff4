"""``clipfleet dead``: requests that ended in the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clipfleet.cli.run import Run, command, usage

if TYPE_CHECKING:
    from clipfleet.cli.letters import Letter
    from clipfleet.cli.queue import QueueView
    from clipfleet.producer import Client
    from clipfleet.schemas.errors import RequestFailed

__all__ = ["register"]

_Entries = Annotated[
    list[str] | None, typer.Argument(metavar="[ENTRY]...", help="Which, as 'dead list' names them.", show_default=False)
]
_All = Annotated[bool, typer.Option("--all", help="All of them.")]
_Inputs = Annotated[bool, typer.Option("--inputs", help="Show their inputs too: other people's data.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Dead letters: requests that no worker could finish.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.add_typer(group, name="dead")
    command(group, "list", examples=("clipfleet dead list", "clipfleet dead list --inputs --json"))(list_letters)
    command(group, "retry", examples=("clipfleet dead retry 1712345678901-0", "clipfleet dead retry --all"))(retry)
    command(group, "drop", examples=("clipfleet dead drop 1712345678901-0", "clipfleet dead drop --all"))(drop)


def list_letters(run: Run, *, inputs: _Inputs = False) -> int:
    """List the dead letters, oldest first. Inputs are other people's data and are shown only with --inputs."""
    from clipfleet.cli.letters import letters  # noqa: PLC0415
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415

    with (
        run.fleet(worker=False) as settings,
        QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view,
    ):
        found = letters(view)
        if run.out.json_lines:
            for letter in found:
                run.out.json(letter.to_json(inputs=inputs))
            return 0
        columns = ["entry", "pipeline", "code", "#deliveries", "message", *(["inputs"] if inputs else [])]
        rows = [_row(letter, inputs=inputs) for letter in found]
        if rows:
            run.out.table("", columns, rows)
        else:
            run.out.line("no dead letters")
    return 0


def retry(run: Run, entries: _Entries = None, *, every: _All = False) -> int:
    """Send dead letters again and wait for their results; those that succeed are dropped.

    The first sender has long been told of the failure: what counts is what the request does, such as indexing.
    """
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.cli.items import Tally  # noqa: PLC0415
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415

    with (
        run.fleet(store=True) as settings,
        QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view,
        connect(settings) as client,
    ):
        tally = Tally(run.out)
        for letter in _chosen(view, entries, every=every):
            tally.add(_retry_one(run, view, client, letter))
    return tally.end()


def drop(run: Run, entries: _Entries = None, *, every: _All = False) -> int:
    """Drop dead letters for good."""
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415

    with (
        run.fleet(worker=False) as settings,
        QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view,
    ):
        dropped = view.drop([letter.entry for letter in _chosen(view, entries, every=every)])
    if run.out.json_lines:
        run.out.json({"dropped": dropped})
    else:
        run.out.line(f"{dropped} dropped")
    return 0


def _chosen(view: QueueView, entries: list[str] | None, *, every: bool) -> list[Letter]:
    from clipfleet.cli.letters import letters  # noqa: PLC0415

    if bool(entries) == every:
        raise usage("name the entries, or --all", "'clipfleet dead list' shows them.")
    found = list(letters(view))
    if every:
        return found
    known = {letter.entry: letter for letter in found}
    unknown = [entry for entry in entries or () if entry not in known]
    if unknown:
        raise usage(f"no such dead letter: {', '.join(unknown)}", "'clipfleet dead list' shows them.")
    return [known[entry] for entry in entries or ()]


def _retry_one(run: Run, view: QueueView, client: Client, letter: Letter) -> RequestFailed | None:
    from clipfleet.cli.commands.embed import failure_json  # noqa: PLC0415
    from clipfleet.schemas.errors import ErrorCode, RequestFailed  # noqa: PLC0415

    try:
        pipeline, inputs, options = letter.again()
        client.run(pipeline, inputs, options)
    except RequestFailed as error:
        # A killer that killed again has a new letter, which replaces this one.
        if error.code is ErrorCode.POISONED:
            view.drop([letter.entry])
        if run.out.json_lines:
            run.out.json({"input": letter.entry, "ok": False, "error": failure_json(error)})
        else:
            run.out.failed(letter.entry, error)
        return error
    view.drop([letter.entry])
    if run.out.json_lines:
        run.out.json({"input": letter.entry, "ok": True})
    else:
        run.out.line(f"{letter.entry}: done")
    return None


def _row(letter: Letter, *, inputs: bool) -> list[str]:
    row = [letter.entry, letter.pipeline, letter.code, letter.deliveries, letter.message]
    return [*row, letter.inputs_text()] if inputs else row
