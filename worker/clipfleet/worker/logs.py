"""Logging of worker and supervisor: one JSON object a line, or plain text on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog

__all__ = ["configure"]


def configure(level: str = "INFO", **bound: str) -> None:
    """Send the standard library's logging through structlog to stderr.

    Args:
        level: a name of ``logging``.
        bound: fields of every line, such as ``worker``.
    """
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {**bound, **event},
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=True) if terminal else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
