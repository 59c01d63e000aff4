"""A whole fleet on this machine: Redis, Milvus Lite and a worker as child processes that cannot outlive us."""

from __future__ import annotations

from clipfleet.cli.local.endpoints import FOLDER, Endpoints, find_live, find_stopped
from clipfleet.cli.local.stack import FolderBusy, Stack, StackOptions, open_local, using
from clipfleet.cli.local.watch import gone, watched

__all__ = [
    "FOLDER",
    "Endpoints",
    "FolderBusy",
    "Stack",
    "StackOptions",
    "find_live",
    "find_stopped",
    "gone",
    "open_local",
    "using",
    "watched",
]
