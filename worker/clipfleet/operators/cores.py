"""How many cores there are for us."""

from __future__ import annotations

import os

__all__ = ["usable_cores"]


def usable_cores() -> int:
    """Cores that this process may use, by affinity; a container's quota is its affinity's business."""
    return len(os.sched_getaffinity(0))
