"""``clipfleet search``: pictures found by words, or by another picture."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipfleet.cli.run import Collection, Run, command, usage
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from clipfleet.cli.items import Answer
    from clipfleet.cli.output import Output

__all__ = ["register", "show_hits"]

_Queries = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TEXT]...",
        help="What to look for; files when --image is given; '-': lines of stdin.",
        show_default=False,
    ),
]
_Images = Annotated[bool, typer.Option("--image", help="Look for pictures like these: --image cat.png dog.png.")]
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=16_384, help="How many hits.")]
_Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="EXPR",
        help='Only rows whose metadata fits: year >= 2020 and tag == "x".',
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "search",
        examples=(
            'clipfleet search "a red heart"',
            "clipfleet search --image cat.jpg --limit 3",
            'clipfleet search "a cat" --filter \'name like "2024%"\' --json',
            "cat queries.txt | clipfleet search --json -",
        ),
    )(search)


def search(
    run: Run,
    text: _Queries = None,
    *,
    image: _Images = False,
    collection: Collection = "images",
    limit: _Limit = 10,
    where: _Filter = None,
) -> int:
    """Find indexed pictures by words, or by a picture.

    The score is the cosine similarity: higher is better.
    """
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.cli.filter_keys import kinds_of, tell_unfit, without_met  # noqa: PLC0415
    from clipfleet.cli.items import Tally, answers, file_items, groups_of, tell_of_files, text_items  # noqa: PLC0415
    from clipfleet.producer import requests  # noqa: PLC0415

    groups = groups_of(text or ())
    if groups is None:
        raise usage("nothing to search for", 'Give words or --image FILE: clipfleet search "a red heart"')
    read = file_items if image else text_items
    if not image:
        tell_of_files(text or (), run.out)
    by = "image" if image else "text"

    def call(value: str | bytes) -> Any:
        return requests.search(**{by: value}, collection=collection, limit=limit, filter=where)  # type: ignore[arg-type]

    def anything(expression: str) -> Any:
        return requests.search("anything", collection=collection, limit=1, filter=expression)

    tally, failed = Tally(run.out), False
    unmet = kinds_of(where or "")
    with run.fleet(store=True) as settings, connect(settings) as client:
        for group in groups:
            began = time.monotonic()
            for answer in answers(client, read(group), call):
                tally.add(answer.error)
                show_hits(run.out, answer, elapsed_s=time.monotonic() - began)
                failed |= answer.error is not None
                if answer.result is not None and answer.error is None:
                    unmet = without_met(unmet, (hit.metadata for hit in answer.result.hits))
                began = time.monotonic()
        if unmet and not failed:
            tell_unfit(run.out, client, collection, unmet, by=anything)
    return tally.end()


def show_hits(out: Output, answer: Answer, *, elapsed_s: float) -> None:
    """The hits of one query, ranked, with scores and how long it took."""
    from clipfleet.cli.commands.embed import show_failure  # noqa: PLC0415

    if answer.error is not None or answer.result is None:
        show_failure(out, answer)
        return
    hits = answer.result.hits
    if out.json_lines:
        rows = [{"id": hit.id, "score": hit.score, "metadata": dict(hit.metadata)} for hit in hits]
        line: dict[str, Any] = {"input": answer.label, "ok": True, "hits": rows}
        if answer.result.notes.get("truncated"):
            line["notes"] = {"truncated": True}
        out.json(line)
        return
    title = f"{answer.label}: {counted(len(hits), 'hit')} in {elapsed_s * 1000:.0f} ms"
    if answer.result.notes.get("truncated"):
        title += "  (cut to what the model reads)"
    if not hits:
        out.line(title)
        return
    out.table(title, ("#rank", "#score", "id"), [(str(n), f"{hit.score:.3f}", hit.id) for n, hit in enumerate(hits, 1)])
