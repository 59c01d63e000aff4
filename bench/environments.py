"""Virtual environments for the projects that ours is compared with, one for each: they want different redis-pys.

``requirements`` pins every package that is installed, so that a figure belongs to versions that can be had again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("CLIPFLEET_BENCH_ENVIRONMENTS", ROOT / ".venv-bench"))
INSTALL_S = 600.0


class CannotInstall(Exception):
    """An environment that cannot be made here; the text says why, in one line."""


def environment(name: str, requirements: Path) -> Path:
    """The ``bin`` folder of the environment ``name``, made when it is not there or its requirements have changed.

    Raises:
        CannotInstall: pip or venv says no.
    """
    folder = FOLDER / name
    stamp = folder / "requirements.sha256"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return folder / "bin"
    print(f"installing {name} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    _run(*pip, "--no-deps", "-r", str(requirements))
    stamp.write_text(wanted)
    return folder / "bin"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{command[0]}: {error}") from error
    if done.returncode:
        said = [row for row in (done.stderr + done.stdout).splitlines() if row.strip() and not row.startswith("WARN")]
        raise CannotInstall(next((row for row in said if "ERROR" in row), said[-1] if said else "no word why")[:200])
