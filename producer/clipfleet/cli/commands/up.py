"""``clipfleet up``: everything on this machine, in the foreground."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clipfleet.cli import worker_options as o
from clipfleet.cli.run import PLAIN, Run, command
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE

if TYPE_CHECKING:
    from clipfleet.cli.local.endpoints import Endpoints

__all__ = ["register", "tell"]

_Port = Annotated[
    int | None,
    typer.Option(
        "--port", "--redis-port", min=1, max=65_535, help="Redis' port. Default: a free one.", show_default=False
    ),
]
_Queue = Annotated[str, typer.Option("--queue", metavar="NAME", help="The queue that its worker serves.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "up",
        common=PLAIN,
        examples=(
            "clipfleet up",
            "clipfleet up --model ViT-B-32/laion2b_s34b_b79k --devices cuda:0",
            "clipfleet up --port 6390",
        ),
    )(up)


def up(  # noqa: PLR0913  each parameter is a flag
    run: Run,
    *,
    port: _Port = None,
    queue: _Queue = "clip",
    model: o.Model = None,
    max_batch_size: o.BatchSize = None,
    max_delay_ms: o.Delay = None,
    bulk_batch_ms: o.BulkBatch = None,
    capacity: o.Capacity = None,
    processes: o.Processes = None,
    devices: o.Devices = None,
    providers: o.Providers = None,
) -> int:
    """Run Redis, Milvus Lite and a worker on this machine.

    They run until Ctrl-C.

    Their data is in ./.clipfleet and is there again the next time. Commands run in this folder, or below it, find
    this fleet by themselves. Everything listens on 127.0.0.1 alone.
    """
    given = {name: value for name, value in locals().items() if name in o.HANDED_ON and value is not None}
    flags = [part for name, value in given.items() for part in (o.HANDED_ON[name], str(value))]
    return _up(run, port, queue, flags)


def _up(run: Run, port: int | None, queue: str, worker_flags: list[str]) -> int:
    from clipfleet.cli.local import FOLDER, Stack, StackOptions  # noqa: PLC0415
    from clipfleet.cli.settings import Flags, load  # noqa: PLC0415

    asked = load(Flags(queue=queue))
    folder = Path.cwd() / FOLDER
    options = StackOptions(folder, "up", asked.queue, asked.prefix, port=port, worker_flags=tuple(worker_flags))
    stack = Stack(options, say=run.out.step)
    stack.start()
    try:
        tell(run, *stack.live)
        stack.watch(threading.Event().wait)
    except KeyboardInterrupt:
        run.out.note("")
    finally:
        stack.stop()
    return 0


def tell(run: Run, endpoints: Endpoints, folder: Path) -> None:
    """Where it answers and what to type next."""
    if run.out.json_lines:
        run.out.json(
            {"ok": True, "redis_url": endpoints.redis_url, "milvus_uri": endpoints.milvus_uri, "queue": endpoints.queue}
        )
        return
    from rich.panel import Panel  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    named = {"queue": (endpoints.queue, DEFAULT_QUEUE), "prefix": (endpoints.prefix, DEFAULT_PREFIX)}
    more = "".join(f", {name}={value!r}" for name, (value, default) in named.items() if value != default)
    text = Text(
        f"redis   {endpoints.redis_url}   queue {endpoints.queue}\n"
        f"milvus  {endpoints.milvus_uri}\n"
        f"data    {folder}\n\n"
        "Now, in another terminal in this folder:\n\n"
        "  clipfleet index DIR\n"
        '  clipfleet search "a red heart"\n'
        "  clipfleet status --watch\n\n"
        "From Python:\n\n"
        "  from clipfleet.producer import Client\n"
        f"  client = Client({endpoints.redis_url!r}{more})\n\n"
        "Ctrl-C stops everything."
    )
    run.out.console().print(Panel(text, title="clipfleet is up", expand=False))
