"""A producer client for a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from clipfleet.cli.settings import Settings
    from clipfleet.producer import Client

__all__ = ["connect"]


def connect(
    settings: Settings, *, lane: Literal["interactive", "bulk"] = "interactive", wait_for_worker: bool = False
) -> Client:
    """A client of the fleet that ``settings`` name; a context manager."""
    from clipfleet.producer import Client  # noqa: PLC0415  not for --help

    return Client(
        settings.redis_url,
        queue=settings.queue,
        prefix=settings.prefix,
        timeout=settings.timeout_s,
        lane=lane,
        # While 'up' starts another worker there is none for some seconds.
        wait_for_worker=wait_for_worker or settings.attended,
    )
