"""A command ends when the local fleet under it does, instead of waiting for answers that cannot come."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError
from clipfleet.cli.local.endpoints import process_start, redis_answers
from clipfleet.schemas.errors import ClipfleetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.cli.local.endpoints import Endpoints

__all__ = ["gone", "watched"]

_LOOK_S: Final = 0.5
# An `up --port N` that is started again at once is the same fleet to whoever waits for it.
_GONE_S: Final = 10.0


@contextmanager
def watched(lost: Callable[[], str]) -> Iterator[None]:
    """Run the body, but end it when ``lost`` gives a reason why its fleet cannot serve any more.

    The body is ended the way SIGTERM ends it: a command is interrupted, a worker lets go of what it holds.

    Raises:
        CliError: the fleet was lost; the text is the reason.
    """
    ended = threading.Event()
    reasons: list[str] = []

    def look() -> None:
        while not ended.wait(_LOOK_S):
            if reason := lost():
                reasons.append(reason)
                # To the process, not by an exception of ours: only a signal wakes a main thread that waits.
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=look, name="watch", daemon=True)
    watcher.start()
    try:
        yield
    except (KeyboardInterrupt, ClipfleetError):
        if not reasons:
            raise
    finally:
        ended.set()
        watcher.join()
    if reasons:
        raise CliError(reasons[0], hint="Run it again.")


def gone(live: tuple[Endpoints, Path]) -> Callable[[], str]:
    """For ``watched``: whether somebody else's fleet has ended and not come back within 10 s."""
    endpoints, folder = live
    seen = time.monotonic()

    def look() -> str:
        nonlocal seen
        if process_start(endpoints.pid) == endpoints.start or redis_answers(endpoints.redis_url):
            seen = time.monotonic()
            return ""
        if time.monotonic() - seen < _GONE_S:
            return ""
        return f"the fleet of {folder} ('clipfleet {endpoints.command}', pid {endpoints.pid}) has stopped"

    return look
