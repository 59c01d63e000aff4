"""A producer client for a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Processes
    from clipfleet.producer import Client

__all__ = ["check_worker", "connect", "connect_many"]


def connect(
    settings: Settings, *, lane: Literal["interactive", "bulk"] = "interactive", wait_for_worker: bool = False
) -> Client:
    """A client of the fleet that ``settings`` name; a context manager."""
    from clipfleet.producer import Client  # noqa: PLC0415  not for --help

    return Client(settings.redis_url, **_options(settings, lane, wait_for_worker))


def connect_many(count: int, settings: Settings, *, lane: Literal["interactive", "bulk"]) -> Processes:
    """Processes, each with such a client that waits for workers; a context manager."""
    from clipfleet.index import Processes  # noqa: PLC0415

    return Processes(count, settings.redis_url, **_options(settings, lane, True))


def _options(settings: Settings, lane: str, wait_for_worker: bool) -> dict[str, Any]:  # noqa: FBT001 - one word each
    return {
        "queue": settings.queue,
        "prefix": settings.prefix,
        "timeout": settings.timeout_s,
        "lane": lane,
        # While 'up' starts another worker there is none for some seconds.
        "wait_for_worker": wait_for_worker or settings.attended,
    }


def check_worker(settings: Settings) -> None:
    """For clients that wait for workers: nobody there at the start is an error all the same.

    Somebody being restarted in the night is waited for.

    Raises:
        Unavailable: no Redis, or no living worker.
    """
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415
    from clipfleet.schemas.errors import ErrorCode, Unavailable  # noqa: PLC0415

    with QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view:
        if not settings.attended and not view.heard_workers():
            raise Unavailable(ErrorCode.UNAVAILABLE, f"no worker on queue {settings.queue!r}")
