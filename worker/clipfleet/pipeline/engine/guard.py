"""Threads that cannot die unnoticed."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CRASHED", "end_process", "start_thread"]

log = logging.getLogger(__name__)
CRASHED = 70  # EX_SOFTWARE


def end_process(name: str) -> None:
    """End it all: a worker whose settling thread is dead looks healthy and answers nobody.

    The supervisor starts a new process at once, and the requests of this one are run again.
    """
    log.critical("thread %s died; so does the process", name, exc_info=sys.exception())
    logging.shutdown()
    os._exit(CRASHED)


def start_thread(
    name: str, run: Callable[[], None], crashed: Callable[[str], object] = end_process
) -> threading.Thread:
    """Run ``run`` in a daemon thread; if it raises, ``crashed`` is called with the name, inside the handler."""

    def guarded() -> None:
        try:
            run()
        except BaseException:  # noqa: BLE001  (nobody else would ever hear of it)
            crashed(name)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
