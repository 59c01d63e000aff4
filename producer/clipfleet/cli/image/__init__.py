"""``clipfleet pipeline build``: a pipeline as an image that serves it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clipfleet.cli.image.command import build

if TYPE_CHECKING:
    from clipfleet.cli.image.context import Built, build_context, parse_tag

__all__ = ["Built", "build", "build_context", "parse_tag"]


def __getattr__(name: str) -> Any:
    """What writes the context is imported by who writes one: the command is declared on everybody's way in."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.context"), name)
