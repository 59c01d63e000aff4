"""Docker or buildah, whichever there is."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Final, Literal

from clipfleet.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Builder", "build_command", "find_builder", "run_builder"]

Builder = Literal["docker", "buildah"]

# A health check is of Docker's format of an image, and buildah's default is the other.
_COMMANDS: Final[dict[Builder, tuple[str, ...]]] = {
    "docker": ("docker", "build"),
    "buildah": ("buildah", "build", "--format", "docker"),
}


def find_builder(wanted: str) -> Builder | None:
    """The builder to use; None: there is none, or none is wanted.

    Args:
        wanted: ``auto`` (Docker if its engine answers, else buildah), ``docker``, ``buildah`` or ``none``.

    Raises:
        CliError: the one that was asked for is not here.
    """
    if wanted == "none":
        return None
    for name in _COMMANDS:
        if wanted == "auto" and _answers(name):
            return name
        if wanted == name:
            if shutil.which(name) is None:
                raise CliError(f"{name} is not on the PATH", hint="--builder none writes the build context alone.")
            return name
    return None


def build_command(builder: Builder, tag: str, folder: Path, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that builds the context in ``folder``."""
    return [*_COMMANDS[builder], "-t", tag, *arguments, str(folder)]


def run_builder(builder: Builder, tag: str, folder: Path, arguments: Sequence[str]) -> None:
    """Build; what it says goes to stderr.

    Raises:
        CliError: it failed.
    """
    command = build_command(builder, tag, folder, arguments)
    # The Dockerfile mounts a secret, which Docker's old builder cannot.
    environment = os.environ | {"DOCKER_BUILDKIT": "1"}
    code = subprocess.run(command, stdout=2, env=environment, check=False).returncode
    if code:
        raise CliError(f"{builder} ended with {code}", hint=f"The context is whole; again: {shlex.join(command)}")


def _answers(name: Builder) -> bool:
    if shutil.which(name) is None:
        return False
    if name == "buildah":
        return True
    # A client without an engine is common: on a machine that talks to another's.
    asked = subprocess.run([name, "version"], capture_output=True, check=False)
    return asked.returncode == 0
