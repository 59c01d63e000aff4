"""The ``clipfleet`` command.

Nothing heavy is imported before it is known which command runs: ``clipfleet --help`` is on everybody's way in.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_CLI_PACKAGES = frozenset({"typer", "rich", "structlog"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return its exit code.

    0 all well, 1 failed, 2 wrong usage, 3 finished but some items failed, 4 queue full or unavailable,
    130 interrupted.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        from clipfleet.cli.version import version  # noqa: PLC0415  answers in a base install too

        sys.stdout.write(f"clipfleet {version()}\n")
        return 0
    try:
        from clipfleet.cli.app import run  # noqa: PLC0415  needs the [cli] extra, which a producer does not
    except ModuleNotFoundError as error:
        if error.name not in _CLI_PACKAGES:
            raise
        sys.stderr.write(
            f"clipfleet: this command needs the package {error.name!r}, which is not installed here.\n"
            'Install it with:  pip install "clipfleet[cli]"   (everything on one machine: "clipfleet[local]")\n'
        )
        return 1
    return run([part for arg in args for part in _parted(arg)])


def _parted(arg: str) -> tuple[str, ...]:
    """``--image=FILE`` as the two words that it stands for: `embed` takes files after a flag, to keep their order."""
    option, equals, value = arg.partition("=")
    return (option, value) if equals and option == "--image" else (arg,)
