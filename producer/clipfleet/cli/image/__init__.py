"""``clipfleet pipeline build``: a pipeline as an image that serves it."""

from __future__ import annotations

from clipfleet.cli.image.command import build
from clipfleet.cli.image.context import Built, build_context, parse_tag

__all__ = ["Built", "build", "build_context", "parse_tag"]
