"""Threads that cannot die unnoticed."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CRASHED", "start_thread"]

log = logging.getLogger(__name__)
CRASHED = 70  # EX_SOFTWARE


def start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Run ``run`` in a daemon thread; if it raises, the whole process ends.

    A worker whose settling thread is dead looks healthy and answers nobody. The supervisor starts a new process at
    once, and the requests of this one are run again.
    """

    def guarded() -> None:
        try:
            run()
        except BaseException:
            log.critical("thread %s died; so does the process", name, exc_info=True)
            logging.shutdown()
            os._exit(CRASHED)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
