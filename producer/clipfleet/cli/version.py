"""Which clipfleet this is."""

from __future__ import annotations

from importlib import metadata

__all__ = ["version"]


def version() -> str:
    """The installed distribution's version, or ``unknown`` when run from a tree that was never installed."""
    try:
        return metadata.version("clipfleet")
    except metadata.PackageNotFoundError:
        return "unknown"
