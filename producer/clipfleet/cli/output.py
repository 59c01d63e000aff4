"""What people and programs read: results on stdout, everything else on stderr.

On a terminal: tables, progress bars, colour. Elsewhere: plain text on stdout and JSON log lines on stderr.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO

from clipfleet.schemas.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.progress import Progress, TaskID
    from structlog.typing import FilteringBoundLogger

    from clipfleet.schemas.errors import RequestFailed

__all__ = ["Output"]


def _visible(text: str) -> str:
    return visible(text, keep="\n\t")


class Output:
    """Both streams of one command.

    Attributes:
        json_lines: whether stdout carries one JSON object a line.
    """

    def __init__(self, *, json_lines: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.json_lines = json_lines
        self._stdout = sys.stdout if stdout is None else stdout
        self._stderr = sys.stderr if stderr is None else stderr
        self.is_terminal = self._stderr.isatty()

    def json(self, value: dict[str, Any]) -> None:
        """One JSON object as a line of stdout, flushed: a reader at the other end of a pipe waits for it."""
        self._stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
        self._stdout.flush()

    def line(self, text: str = "") -> None:
        """A line of stdout, flushed: in a file or a pipe it stands where it was said, between the lines of stderr."""
        self._stdout.write(_visible(text) + "\n")
        self._stdout.flush()

    def note(self, text: str) -> None:
        """A line for people on stderr."""
        self._stderr.write(f"{_visible(text)}\n")
        self._stderr.flush()

    @property
    def can_ask(self) -> bool:
        """Whether there is somebody to answer: a terminal for the question, and one for the answer."""
        return self.is_terminal and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        """Ask on stderr, and wait; anything but yes is no."""
        self._stderr.write(f"{_visible(question)} [y/N] ")
        self._stderr.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def step(self, text: str) -> None:
        """Something is being done: a line on a terminal, a log line elsewhere."""
        if self.is_terminal:
            self.note(f"… {text}")
        else:
            self.log().info(text)

    def failed(self, label: str, error: RequestFailed) -> None:
        """One input that failed, on stderr; one that is empty has no name to begin the line with."""
        self.note(f"{label or '(an empty input)'}: {error.code}: {error.message}")

    def error(self, text: str, hint: str = "") -> None:
        """What went wrong, and what to do about it."""
        self.note(f"clipfleet: {text}")
        if hint:
            self.note(f"  {hint}")

    def log(self) -> FilteringBoundLogger:
        """A logger that writes one JSON object a line to stderr."""
        import structlog  # noqa: PLC0415  only where there is no terminal

        logger: FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(self._stderr),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        )
        return logger

    def take_logs(self) -> None:
        """Show what libraries log, from warnings up, the way everything else is shown."""
        handler = _LogLines(self)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logging.getLogger().addHandler(handler)

    def console(self) -> Console:
        """A rich console on stdout for tables and panels."""
        from rich.console import Console  # noqa: PLC0415  not for --json

        # In a pipe there is no width to keep to, and wrapped cells are hard to cut.
        return Console(file=self._stdout, highlight=False, width=None if self._stdout.isatty() else 240)

    def clear(self) -> None:
        """Clear the screen."""
        self.console().clear()

    def bar(self, what: str) -> tuple[Progress, TaskID]:
        """A progress bar on stderr, not started, and its one task, which has the fields ``failed`` and ``rate``."""
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f}/s"),
            TextColumn("{task.fields[failed]} failed"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._stderr),
        )
        return bar, bar.add_task(what, total=None, failed=0, rate=0)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on stdout; columns whose name starts with ``#`` hold numbers."""
        from rich import box  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=box.SIMPLE_HEAD)
        for column in columns:
            numbers = column.startswith("#")
            table.add_column(column.removeprefix("#"), justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            # As Text: an id such as "[red]" is data, not markup.
            table.add_row(*(Text(_visible(cell)) for cell in row))
        console = self.console()
        if console.is_terminal:
            # Above the table and not as its title, which is wrapped to the table's width.
            if title:
                console.print(Text(_visible(title), style="bold"))
            console.print(table)
            return
        if title:
            self.line(title)
        with console.capture() as drawn:
            console.print(table)
        # Cells are padded to the width of their column; in a file nobody wants the spaces.
        self._stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))
        self._stdout.flush()


class _LogLines(logging.Handler):
    """Log records as lines of an ``Output``."""

    def __init__(self, out: Output) -> None:
        super().__init__(logging.WARNING)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """One record. What cannot be written (a closed pipe) must not end the thread that logged it."""
        try:
            if self._out.is_terminal:
                self._out.note(f"{record.levelname.lower()}: {self.format(record)}")
            else:
                self._out.log().log(record.levelno, self.format(record), logger=record.name)
        except (OSError, ValueError):
            self.handleError(record)
