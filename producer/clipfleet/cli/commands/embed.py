"""``clipfleet embed``: vectors of texts or pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipfleet.cli.run import Run, command, usage

if TYPE_CHECKING:
    from clipfleet.cli.items import Answer
    from clipfleet.cli.output import Output
    from clipfleet.schemas.errors import RequestFailed

__all__ = ["failure_json", "register", "show", "show_failure"]

_Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TEXT]...",
        help="Texts; files when --image is given; '-' or none: the lines of stdin.",
        show_default=False,
    ),
]
# A flag and not an option with a value: only so do files keep the order in which they were given.
_Images = Annotated[bool, typer.Option("--image", help="What is given are files of pictures: --image a.png b.png.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "embed",
        examples=(
            'clipfleet embed "a red heart" "a blue heart"',
            "clipfleet embed --image cat.jpg dog.jpg --json > vectors.jsonl",
            "cat captions.txt | clipfleet embed --json -",
            'clipfleet embed --local "nothing needs to run for this"',
        ),
    )(embed)


def embed(run: Run, inputs: _Inputs = None, *, image: _Images = False) -> int:
    """Turn texts or pictures into vectors.

    Results come in the order given. A bad item fails alone: its line says why, the others are answered, and the
    exit code is 3.
    """
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.cli.items import Tally, answers, file_items, groups_of, tell_of_files, text_items  # noqa: PLC0415
    from clipfleet.producer import requests  # noqa: PLC0415

    groups = groups_of(inputs or ())
    if groups is None:
        raise usage(
            "nothing to embed", 'Give texts or --image FILE, or pipe lines in: echo "a cat" | clipfleet embed -'
        )
    read = file_items if image else text_items
    if not image:
        tell_of_files(inputs or (), run.out)
    call: Any = requests.embed_image if image else requests.embed_text
    tally = Tally(run.out)
    with run.fleet() as settings, connect(settings) as client:
        for group in groups:
            for answer in answers(client, read(group), call):
                tally.add(answer.error)
                show(run.out, answer)
    return tally.end()


def show(out: Output, answer: Answer) -> None:
    """The vector of one input."""
    if answer.error is not None or answer.result is None:
        show_failure(out, answer)
    elif out.json_lines:
        # Nine significant digits are a float32, whole.
        vector = [float(f"{x:.9g}") for x in answer.result.vector]
        line: dict[str, Any] = {"input": answer.label, "ok": True, "vector": vector}
        if answer.result.notes.get("truncated"):
            line["notes"] = {"truncated": True}
        out.json(line)
    else:
        vector = answer.result.vector.tolist()
        head = ", ".join(f"{x:+.4f}" for x in vector[:6])
        note = "  (cut to what the model reads)" if answer.result.notes.get("truncated") else ""
        out.line(f"{answer.label}\t[{head}{', …' if len(vector) > 6 else ''}]  {len(vector)} dims{note}")


def show_failure(out: Output, answer: Answer) -> None:
    """A failed item, as every command prints it."""
    if answer.error is None:
        return
    if out.json_lines:
        out.json({"input": answer.label, "ok": False, "error": failure_json(answer.error)})
    else:
        out.failed(answer.label, answer.error)


def failure_json(error: RequestFailed) -> dict[str, Any]:
    """A failure as ``--json`` prints it."""
    return {"code": str(error.code), "message": error.message, "retryable": error.retryable}
