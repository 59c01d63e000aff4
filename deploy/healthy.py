"""Exit 0 while a worker of this very container is alive on its queue: the image's health check.

``clipfleet status`` alone would not do: it is content with any worker of the fleet.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys

answer = subprocess.run(["clipfleet", "status", "--json"], capture_output=True, text=True, check=False)
# It prints the queue also when it ends with 4, no worker alive; nothing at all when Redis does not answer.
if not answer.stdout:
    sys.exit(answer.stderr.strip() or f"clipfleet status ended with {answer.returncode}")
here = platform.node()
if not any(worker["alive"] and worker.get("host") == here for worker in json.loads(answer.stdout)["workers"]):
    sys.exit(f"no worker of {here} is alive")
