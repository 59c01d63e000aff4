"""How every command runs: its common flags, where its fleet is, what it prints, its exit code."""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import traceback
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clipfleet.cli.errors import CliError, Exit, describe, exit_for
from clipfleet.cli.output import Output
from clipfleet.cli.settings import Flags, Settings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from clipfleet.cli.local.endpoints import Endpoints

__all__ = ["FLEET", "PLAIN", "Collection", "Run", "collection_name", "command", "usage"]

# As clipfleet.store.types.check_collection_name has it: which is not here where nobody serves.
_COLLECTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def collection_name(name: str | None) -> str | None:
    """``name``, if a collection can have it."""
    if name is not None and not _COLLECTION.fullmatch(name):
        raise typer.BadParameter("letters, digits and _, not starting with a digit, at most 128")
    return name


Collection = Annotated[
    str,
    typer.Option("--collection", metavar="NAME", callback=collection_name, help="Where the pictures are indexed."),
]

_COMMON: Final[dict[str, Any]] = {
    "redis_url": Annotated[
        str | None,
        typer.Option(
            "--redis-url", metavar="URL", help="The fleet's Redis: redis://, rediss:// or unix://.", show_default=False
        ),
    ],
    "milvus_uri": Annotated[
        str | None,
        typer.Option("--milvus-uri", metavar="URI", help="The Milvus server: http(s)://host:port.", show_default=False),
    ],
    "queue": Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="The queue's name; 'clip' when nobody names one.")
    ],
    "local": Annotated[
        bool,
        typer.Option(
            "--local",
            help="Use the fleet of ./.clipfleet, or start one there for this command: embedded Redis, Milvus Lite.",
        ),
    ],
    "json": Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
}
FLEET: Final = ("redis_url", "milvus_uri", "queue", "local")
PLAIN: Final = ("json", "debug")


class Run:
    """One run of one command.

    Attributes:
        flags: its common flags.
        out: what it prints with.
        command: its name.
    """

    def __init__(self, command: str, flags: Flags) -> None:
        self.command = command
        self.flags = flags
        self.out = Output(json_lines=flags.json)

    @contextmanager
    def fleet(self, *, store: bool = False, worker: bool = True) -> Iterator[Settings]:
        """Settings of the fleet to use, held in place while the command runs; says which one it is.

        Args:
            store: whether an embedded one needs Milvus Lite.
            worker: whether an embedded one needs a worker.
        """
        from clipfleet.cli.local import FOLDER, StackOptions, find_live, gone, open_local, using, watched  # noqa: PLC0415

        asked = load(self.flags)
        if self.flags.local and self.flags.redis_url:
            raise usage("--local and --redis-url are two fleets: give one of them")
        if self.flags.local:
            folder = Path.cwd() / FOLDER
            options = StackOptions(folder, self.command, asked.queue, asked.prefix, store=store, worker=worker)
            with open_local(options, lambda: find_live(Path.cwd()), say=self.out.step) as live:
                yield self._said(_local_settings(self.flags, live))
            return
        live_one = None if asked.source != "the default" else find_live(Path.cwd())
        if live_one is not None:
            with using(live_one) as still_there:
                if still_there:
                    settings = self._said(load(self.flags, live=live_one), served=worker)
                    # A worker, and whoever looks at a queue, may outlive the fleet that was found.
                    with watched(gone(live_one)) if worker else nullcontext():
                        yield settings
                    return
        if asked.source == "the default":
            self._tell_stopped()
        yield self._said(asked)

    def _tell_stopped(self) -> None:
        from clipfleet.cli.local import find_stopped  # noqa: PLC0415

        if (stopped := find_stopped(Path.cwd())) is not None:
            left, folder = stopped
            self.out.note(
                f"the fleet of {folder} ('clipfleet {left.command}', pid {left.pid}) has stopped; start it with"
                " 'clipfleet up'"
            )

    def _said(self, settings: Settings, *, served: bool = False) -> Settings:
        self.out.note(settings.line(store=settings.milvus_is_lite or self.command in _OF_THE_STORE))
        if self.flags.milvus_uri and self.command not in _OF_THE_STORE:
            self.out.note(f"--milvus-uri does nothing for {self.command}: the fleet's workers have their own")
        if served and settings.attended:
            self._tell_restart(settings)
        return settings

    def _tell_restart(self, settings: Settings) -> None:
        from clipfleet.cli.queue import QueueView  # noqa: PLC0415

        with QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view:
            if not view.heard_workers():
                self.out.note("its worker is being started again: waiting for it")


def _local_settings(flags: Flags, live: tuple[Endpoints, Path]) -> Settings:
    """``--local`` is a flag: it beats the environment's addresses."""
    environ = {name: value for name, value in os.environ.items() if not name.removesuffix("_FILE").endswith(_ADDRESSES)}
    return load(flags, environ, live=live)


# The commands that speak to Milvus themselves.
_OF_THE_STORE: Final = frozenset({"worker", "doctor", "index", "export", "import"})
_ADDRESSES: Final = ("REDIS_URL", "MILVUS_URI", "MILVUS_TOKEN", "MILVUS_CA")


def command(
    app: typer.Typer, name: str, *, common: Sequence[str] = (*FLEET, *PLAIN), examples: Sequence[str] = ()
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register ``function(run, *arguments, **options) -> exit code or None`` as a command.

    Args:
        app: where to.
        name: its name.
        common: which of the common flags it has.
        examples: command lines shown at the end of its help.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = [
            inspect.Parameter(
                each,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if each in {"local", "json", "debug"} else None,
                annotation=_COMMON[each],
            )
            for each in common
        ]

        def entry(**given: Any) -> None:
            flags = Flags(**{each: given.pop(each) for each in common})
            raise typer.Exit(_report(Run(name, flags), lambda run: function(run, **given)))

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + shared
        entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        entry.__annotations__ = {each.name: each.annotation for each in parameters}
        entry.__doc__ = function.__doc__
        text = inspect.getdoc(function) or ""
        if examples:
            text += "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)
        app.command(name, help=text)(entry)
        return function

    return register


def _report(run: Run, body: Callable[[Run], int | None]) -> int:
    """Run ``body``; whatever it raises becomes one line on stderr and an exit code."""
    # SIGTERM and a closed terminal end a command the way Ctrl-C does: what it started is stopped.
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Ignored means that somebody wants it so: nohup.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    run.out.take_logs()
    try:
        return int(body(run) or Exit.OK)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the outermost place: nothing may end as a traceback
        if isinstance(error, KeyboardInterrupt):
            run.out.note("interrupted")
        else:
            if run.flags.debug:
                traceback.print_exc()
            run.out.error(*describe(error))
        return exit_for(error)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def usage(message: str, hint: str = "") -> CliError:
    """A usage error (exit code 2)."""
    return CliError(message, hint=hint, exit_code=Exit.USAGE)
