"""The images' health check, ``python3 -m clipfleet.cli.healthy``: exit 0 while a worker of this container is alive.

``clipfleet status`` alone would not do: it is content with any worker of the fleet.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys

__all__ = ["main"]


def main() -> str | None:
    """None when all is well, else what is wrong."""
    asked = subprocess.run(
        [sys.executable, "-m", "clipfleet.cli", "status", "--json"], capture_output=True, text=True, check=False
    )
    # It prints the queue also when it ends with 4, no worker alive; nothing at all when Redis does not answer.
    if not asked.stdout:
        return asked.stderr.strip() or f"clipfleet status ended with {asked.returncode}"
    here = platform.node()
    workers = json.loads(asked.stdout)["workers"]
    if not any(worker["alive"] and worker.get("host") == here for worker in workers):
        return f"no worker of {here} is alive"
    return None


if __name__ == "__main__":
    sys.exit(main())
