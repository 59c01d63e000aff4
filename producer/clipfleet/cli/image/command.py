"""The command: write the build context, then build the image where there is something to build it with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clipfleet.cli.run import Run  # noqa: TC001  typer reads the annotations

if TYPE_CHECKING:
    from clipfleet.cli.image.builders import Builder
    from clipfleet.cli.image.context import Built

__all__ = ["build"]

_Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="The pipeline; modules are found from the current folder on.")
]
_Tag = Annotated[str, typer.Option("--tag", metavar="NAME:VERSION", help="Of the image.", show_default=False)]
_Out = Annotated[
    Path | None,
    typer.Option(
        "-o", "--out", metavar="DIR", help="The build context. Default: build/NAME-VERSION.", show_default=False
    ),
]
_Builder = Annotated[
    Literal["auto", "docker", "buildah", "none"],
    typer.Option("--builder", help="What builds the image; none writes the context alone."),
]
_Arguments = Annotated[
    list[str] | None,
    typer.Option("--builder-arg", metavar="ARG", help="Handed to the builder; repeatable.", show_default=False),
]
_Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="IMAGE",
        help="The image to stand on. Default: the official slim image of this Python.",
        show_default=False,
    ),
]
_Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="For stages that name none. Default: demo.", show_default=False),
]
_Include = Annotated[
    list[Path] | None,
    typer.Option("--include", metavar="PATH", help="A file or folder to take along; repeatable.", show_default=False),
]


def build(  # noqa: PLR0913  each parameter is a flag
    run: Run,
    target: _Target,
    *,
    tag: _Tag,
    out: _Out = None,
    builder: _Builder = "auto",
    builder_arg: _Arguments = None,
    base: _Base = None,
    model: _Model = None,
    include: _Include = None,
) -> int:
    """Build an image that serves a pipeline.

    Its modules, the files and models that its operators name, and the packages of this environment, each in the version
    that runs here, are written into a build context: the same inputs, the same bytes. Docker or buildah then builds it.
    """
    from clipfleet.cli.image.builders import find_builder, run_builder  # noqa: PLC0415  only this command needs them
    from clipfleet.cli.image.context import build_context, parse_tag  # noqa: PLC0415
    from clipfleet.cli.target import load_pipeline  # noqa: PLC0415

    name, version = parse_tag(tag)
    found = find_builder(builder)
    folder = out or Path("build", f"{name.rpartition('/')[2]}-{version}")
    run.out.step(f"writing {folder}")
    pipeline = load_pipeline(target)
    context = build_context(pipeline, target, tag, folder, base=base, model=model, include=include or ())
    for kind, what in context.taken:
        run.out.step(f"{kind}: {what}")
    if found is not None:
        run.out.step(f"building {tag} with {found}")
        run_builder(found, tag, folder, builder_arg or ())
    _tell(run, context, found)
    return 0


def _tell(run: Run, context: Built, builder: Builder | None) -> None:
    from clipfleet.cli.image.builders import build_command  # noqa: PLC0415

    if run.out.json_lines:
        run.out.json(
            {
                "tag": context.tag,
                "path": str(context.path),
                "fingerprint": context.fingerprint,
                "builder": builder,
                "taken": [{"kind": kind, "what": what} for kind, what in context.taken],
            }
        )
        return
    if builder is None:
        lines = [shlex.join(build_command(each, context.tag, context.path)) for each in ("docker", "buildah")]
        run.out.line(f"The build context is in {context.path}; build it with one of\n  " + "\n  ".join(lines))
    serve = f"docker run --rm -e CLIPFLEET_REDIS_URL=redis://HOST:6379 {context.tag}"
    run.out.line(f"Serve it with: {serve}")
