"""``clipfleet demo``: the whole of it in one command, with nothing running before or after."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clipfleet.cli.errors import CliError
from clipfleet.cli.run import PLAIN, Run, command, usage
from clipfleet.cli.settings import Flags, load
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.cli.items import Item
    from clipfleet.cli.settings import Settings
    from clipfleet.producer.requests import NewRequest

__all__ = ["QUESTIONS", "register"]

# The first of the seventy questions that were written before the model was trained (tools/demo_model/questions.toml),
# without "the night sky", which it gets wrong: the model's card shows that and the other misses.
QUESTIONS: Final = (
    "a red heart",
    "something to eat",
    "an angry face",
    "a vehicle",
    "cold weather",
    "a cat",
    "a musical instrument",
    "flowers",
    "a sport with a ball",
    "a dog",
)
# Whatever the environment says.
WORKER_FLAGS: Final = ("--model", "demo", "--devices", "cpu")
_FOLDER: Final = ".demo"
_MARK: Final = "made-by-clipfleet-demo"
_PICTURE: Final = "red-heart.png"
_SHOWN_HITS: Final = 5

_Pictures = Annotated[
    Path | None,
    typer.Option("--pictures", metavar="DIR", help="Index these instead of the shipped ones.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "demo", common=PLAIN, examples=("clipfleet demo", "clipfleet demo --pictures ~/Pictures"))(demo)


def demo(run: Run, *, pictures: _Pictures = None) -> int:
    """Everything at once: index the shipped pictures, find them.

    Starts a fleet of its own, indexes, asks in words and by picture, and stops it again.

    Its data is in ./.demo, made anew each time. The model is a small demo: see its model card for what it gets wrong.
    """
    from clipfleet.cli.indexing import Plan, run_index  # noqa: PLC0415
    from clipfleet.index import Sending  # noqa: PLC0415

    began = time.monotonic()
    source = _pictures(pictures)
    with _fleet(run) as settings:
        if code := run_index(run, settings, [source], Plan(Sending("demo"))):
            return code
        without = _ask(run, settings, source)
    if not run.out.json_lines:
        run.out.line(f"Everything is stopped again; {time.monotonic() - began:.0f} s in all.")
    if without:
        raise CliError(f"nothing was found for: {', '.join(without)}")
    return 0


def _pictures(chosen: Path | None) -> Path:
    if chosen is not None:
        if not chosen.is_dir():
            raise usage(f"{chosen}: no such folder")
        return chosen
    # Where a checkout has them: below the current folder, or beside this (editable) installation.
    for root in (Path.cwd(), Path(__file__).resolve().parents[4]):
        if (root / "examples" / "pictures").is_dir():
            return root / "examples" / "pictures"
    raise CliError(
        "the shipped pictures are not here: they are in a checkout's examples/pictures",
        hint="Run it in a checkout, or name a folder with --pictures DIR.",
    )


@contextmanager
def _fleet(run: Run) -> Iterator[Settings]:
    from clipfleet.cli.local import Stack, StackOptions, watched  # noqa: PLC0415

    folder = Path.cwd() / _FOLDER
    if folder.exists():
        if not (folder / _MARK).exists():
            raise CliError(f"{folder} is not the demo's own; it is left alone", hint="Move it away.")
        shutil.rmtree(folder)
    folder.mkdir()
    (folder / _MARK).touch()
    options = StackOptions(folder, "demo", DEFAULT_QUEUE, DEFAULT_PREFIX, worker_flags=WORKER_FLAGS)
    stack = Stack(options, say=run.out.step)
    stack.start()
    try:
        with watched(stack.lost):
            yield load(Flags(), {}, live=stack.live)
    finally:
        stack.stop()


def _ask(run: Run, settings: Settings, source: Path) -> list[str]:
    """Ask in words and by one picture; returns the questions without a hit.

    Raises:
        RequestFailed: a question was not answered.
    """
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.cli.commands.search import show_hits  # noqa: PLC0415
    from clipfleet.cli.items import answers, file_items, text_items  # noqa: PLC0415
    from clipfleet.index import walk  # noqa: PLC0415
    from clipfleet.producer import requests  # noqa: PLC0415

    def by_text(text: Any) -> NewRequest:
        return requests.search(text, collection="demo", limit=_SHOWN_HITS)

    def by_picture(picture: Any) -> NewRequest:
        return requests.search(image=picture, collection="demo", limit=_SHOWN_HITS)

    picture = source / _PICTURE
    if not picture.exists():
        picture = next(found.path for found in walk([source]) if found.error is None)
    asked: list[tuple[Item, Callable[[Any], NewRequest]]] = [(item, by_text) for item in text_items(QUESTIONS)]
    asked += [(replace(item, label=f"the picture {picture.name}"), by_picture) for item in file_items([str(picture)])]
    without = []
    with connect(settings) as client:
        for item, call in asked:
            began = time.monotonic()
            (answer,) = answers(client, [item], call)
            if answer.result is None or answer.error is not None:
                raise answer.error or CliError(f"{item.label} was not answered")
            show_hits(run.out, answer, elapsed_s=time.monotonic() - began)
            if not answer.result.hits:
                without.append(item.label)
    return without
