"""A whole fleet on this machine: Redis, Milvus Lite and a worker as child processes that cannot outlive us."""

from __future__ import annotations

from clipfleet.cli.local.endpoints import FOLDER, Endpoints, find_live
from clipfleet.cli.local.stack import FolderBusy, Stack, StackOptions, open_local, using

__all__ = ["FOLDER", "Endpoints", "FolderBusy", "Stack", "StackOptions", "find_live", "open_local", "using"]
