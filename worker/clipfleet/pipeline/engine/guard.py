"""Threads that cannot die unnoticed."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
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
    name: str, run: Callable[[], None], crashed: Callable[[str], object] = end_process, *, nice: int = 0
) -> threading.Thread:
    """Run ``run`` in a daemon thread; if it raises, ``crashed`` is called with the name, inside the handler.

    Args:
        name: of the thread.
        run: what it does.
        crashed: told its name.
        nice: how much further than its maker it lets others of the machine go first, where a thread can (on Linux).
    """

    def guarded() -> None:
        try:
            if nice and sys.platform == "linux":
                me = threading.get_native_id()
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + nice)
            run()
        except BaseException:  # noqa: BLE001  (nobody else would ever hear of it)
            crashed(name)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
