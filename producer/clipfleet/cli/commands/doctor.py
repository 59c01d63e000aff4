"""``clipfleet doctor``: what is wrong here, and how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.cli.run import Run, command
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    import typer

    from clipfleet.cli.checks import Check
    from clipfleet.cli.output import Output

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor", examples=("clipfleet doctor", "clipfleet doctor --redis-url redis://queue:6379 --json"))(
        doctor
    )


def doctor(run: Run) -> int:
    """Find what is wrong here, and how to mend it.

    Looks at Redis, Milvus, the runtime, the device, the model and memory.

    The exit code is 1 when something is wrong. With --json: one object a line with check, ok, state, detail, fix.
    """
    from clipfleet.cli.checks import run_checks  # noqa: PLC0415

    wrong = 0
    with run.fleet(store=True, worker=False) as settings:
        for check in run_checks(settings):
            wrong += check.state == "bad"
            _show(run.out, check)
    if not run.out.json_lines:
        run.out.line("all well" if not wrong else f"{counted(wrong, 'thing')} to mend")
    return 1 if wrong else 0


def _show(out: Output, check: Check) -> None:
    if out.json_lines:
        out.json(check.to_json())
        return
    mark = {"ok": "ok  ", "note": "note", "bad": "BAD "}[check.state]
    out.line(f"{mark}  {check.name}: {check.detail}")
    if check.fix:
        out.line(f"      → {check.fix}")
