"""``clipfleet pipeline``: look at a pipeline, run it here, put it into an image."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipfleet.cli.errors import CliError
from clipfleet.cli.image import build
from clipfleet.cli.run import PLAIN, Run, command, usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clipfleet.cli.pipeline_items import Given, Outcome
    from clipfleet.pipeline import Pipeline
    from clipfleet.pipeline.profile import Profile
    from clipfleet.pipeline.trace import Trace

__all__ = ["register"]

_Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME",
        help="The pipeline: modules of the current folder are found first. A name alone is one of the built-in ones.",
    ),
]
_Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Draw it as SVG into this file.", show_default=False)
]
_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[INPUT]...",
        help="Each is the pipeline's first input: a file whose bytes are meant where the input is named like a picture"
        " (image, picture, photo, video, bytes), else text.",
        show_default=False,
    ),
]
_File = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE.jsonl",
        help="Read the requests from this file: one JSON object of inputs a line.",
        show_default=False,
    ),
]
_Model = Annotated[
    str, typer.Option("--model", metavar="NAME", help="What stages mean that name none: as for 'clipfleet worker'.")
]
_Device = Annotated[str, typer.Option("--device", help="Where models run unless a stage says: cpu or cuda:N.")]
_BatchSize = Annotated[
    int, typer.Option("--max-batch-size", min=1, help="Most items of one run, of stages that do not say.")
]
_Profile = Annotated[bool, typer.Option("--profile", help="Tell at the end where the time went, stage by stage.")]
_TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace-file",
        metavar="FILE.json",
        help="Write each call of each stage as a Chrome trace, for ui.perfetto.dev.",
        show_default=False,
    ),
]
_Trace = Annotated[
    int | None,
    typer.Option(
        "--trace", metavar="ID", min=1, help="Show the values of the IDth input through each step.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Pipelines: see them, run them here, build their image.", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(group, name="pipeline")
    command(
        group,
        "show",
        common=PLAIN,
        examples=("clipfleet pipeline show search", "clipfleet pipeline show mymodule:objects --svg objects.svg"),
    )(show)
    command(
        group,
        "run",
        common=("milvus_uri", *PLAIN),
        examples=(
            "clipfleet pipeline run embed_image cat.jpg dog.jpg --json",
            "clipfleet pipeline run mymodule:objects street.jpg --trace 1",
            "clipfleet pipeline run mymodule:objects --input requests.jsonl --profile --trace-file trace.json",
        ),
    )(run_it)
    command(group, "build", common=PLAIN, examples=("clipfleet pipeline build mymodule:objects --tag objects:v1",))(
        build
    )


def show(run: Run, target: _Target, *, svg: _Svg = None) -> int:
    """Draw a pipeline: each step with the columns it reads and makes, its batches, and the rows below a flat_map."""
    from clipfleet.pipeline.draw import draw_svg, draw_text  # noqa: PLC0415  needs the [worker] extra
    from clipfleet.pipeline.steps import describe  # noqa: PLC0415

    pipeline = _load(target)
    if svg is not None:
        svg.write_text(draw_svg(pipeline), encoding="utf-8")
    if run.out.json_lines:
        run.out.json({"pipeline": target, **describe(pipeline)})
    elif svg is not None:
        run.out.line(f"{target} is drawn in {svg}")
    else:
        run.out.line(draw_text(pipeline).rstrip("\n"))
    return 0


def run_it(  # noqa: PLR0913  each parameter is a flag
    run: Run,
    target: _Target,
    inputs: _Words = None,
    *,
    input: _File = None,  # noqa: A002  the flag's name
    model: _Model = "demo",
    device: _Device = "cpu",
    max_batch_size: _BatchSize = 64,
    profile: _Profile = False,
    trace_file: _TraceFile = None,
    trace: _Trace = None,
) -> int:
    """Run a pipeline here, in this process, without Redis and without a worker.

    Requests stream through it and are batched as on the fleet. Results come in the order given; a bad one fails
    alone, and the exit code is 3.
    """
    from clipfleet.cli.items import Tally  # noqa: PLC0415
    from clipfleet.cli.pipeline_items import outcomes  # noqa: PLC0415
    from clipfleet.pipeline.profile import Observers, Profile  # noqa: PLC0415
    from clipfleet.pipeline.trace import Trace  # noqa: PLC0415

    pipeline = _load(target)
    requests = _requests(pipeline, inputs or (), input)
    watch = Profile() if profile or trace_file else None
    traced = Trace() if trace else None
    observers = [one for one in (watch, traced) if one is not None]
    watching = Observers(*observers) if observers else None
    tally = Tally(run.out)
    with _opened(run, pipeline, model, device=device, max_batch_size=max_batch_size, observer=watching):
        for outcome in outcomes(pipeline, requests, trace=traced, traced=trace or 0):
            tally.add(outcome.error)
            _tell(run, outcome, alone=len(inputs or ()) == 1)
        pipeline.flush()
    if traced is not None:
        _tell_trace(run, traced, trace or 0)
    if watch is not None:
        _tell_profile(run, watch, trace_file, table=profile)
    return tally.end()


@contextmanager
def _opened(run: Run, pipeline: Pipeline, model: str, **options: Any) -> Iterator[None]:
    """The pipeline at work, with a model and a store of its own.

    Raises:
        CliError: a step cannot work as it was configured.
    """
    from clipfleet.cli.settings import load  # noqa: PLC0415
    from clipfleet.operators.services import ProcessServices  # noqa: PLC0415

    settings = load(run.flags)
    services = ProcessServices(model=model, milvus_uri=settings.milvus_uri, milvus_token=settings.milvus_token)
    interrupted = False
    try:
        try:
            pipeline.open(services=services, **options)
        except ValueError as error:
            raise CliError(str(error)) from None
        yield
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        # Closing waits for what runs; whoever presses Ctrl-C does not, and the process takes it along.
        if not interrupted:
            pipeline.close()
            services.close()


def _load(target: str) -> Pipeline:
    from clipfleet.cli.target import load_pipeline  # noqa: PLC0415

    if ":" in target:
        return load_pipeline(target)
    from clipfleet.models import model_info  # noqa: PLC0415
    from clipfleet.pipeline.builtin import builtin_pipelines  # noqa: PLC0415

    known = builtin_pipelines(model_info("demo")["dimension"], store=True)
    if target not in known:
        raise usage(
            f"there is no built-in pipeline {target!r}; there are {', '.join(known)}",
            "One of your own is named MODULE:NAME.",
        )
    return known[target]


def _requests(pipeline: Pipeline, words: Sequence[str], file: Path | None) -> Iterator[Given]:
    from clipfleet.cli.pipeline_items import given_lines, given_words  # noqa: PLC0415

    if bool(words) == (file is not None):
        what = ", ".join(pipeline.inputs)
        raise usage(f"give inputs ({pipeline.inputs[0]}), or --input FILE.jsonl with objects of: {what}")
    return given_words(pipeline, words) if file is None else given_lines(pipeline, file)


def _tell(run: Run, outcome: Outcome, *, alone: bool) -> None:
    from clipfleet.cli.commands.embed import failure_json  # noqa: PLC0415
    from clipfleet.pipeline.as_json import as_json  # noqa: PLC0415

    error, table = outcome.error, outcome.table
    if run.out.json_lines:
        line: dict[str, Any] = {"input": outcome.label, "ok": error is None}
        if error is not None:
            line["error"] = failure_json(error)
        elif table is not None:
            line["rows"] = [as_json(row) for row in table]
        run.out.json(line)
    elif error is not None:
        run.out.failed(outcome.label, error)
    elif table is not None:
        if not alone:
            run.out.line(f"{outcome.label}:")
        table.show(limit=20)


def _tell_trace(run: Run, trace: Trace, number: int) -> None:
    lines = trace.lines
    if not lines:
        run.out.note(f"nothing to trace: there was no input {number}, or it came to no step")
    elif run.out.json_lines:
        run.out.json(
            {
                "trace": number,
                "steps": [
                    {"step": one.step, "row": list(one.row), "inputs": list(one.inputs), "value": one.value}
                    for one in lines
                ],
            }
        )
    else:
        run.out.note(trace.text().rstrip("\n"))


def _tell_profile(run: Run, profile: Profile, file: Path | None, *, table: bool) -> None:
    if file is not None:
        left_out = profile.write_trace(file)
        more = f" (its first calls: {left_out:,} more are not in it)" if left_out else ""
        run.out.note(f"the trace is in {file}{more}; open it at https://ui.perfetto.dev")
    if table and run.out.json_lines:
        run.out.json({"profile": [one.as_json() for one in profile.stages()]})
    elif table:
        run.out.note(profile.text().rstrip("\n"))
