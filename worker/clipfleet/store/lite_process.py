"""The process that ``lite.LiteServer`` starts: Milvus Lite's own server with one worker, bound to its parent's life.

``python -m clipfleet.store.lite_process PARENT_PID DATA_DIR PORT``
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_GRACE_S: Final = 10.0


def main(arguments: list[str]) -> int:
    """Serve until a signal, or until the parent is gone."""
    parent, data_dir, port = int(arguments[0]), arguments[1], arguments[2]
    # An interrupt closes the files; milvus-lite knows no other way to stop, and a shell's background job starts with
    # interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    if not end_with(parent):
        return 1
    from milvus_lite.cmdline import main as serve  # noqa: PLC0415 - seconds of imports: first the parent is watched

    served: int = serve(["server", "--data-dir", data_dir, "--host", "127.0.0.1", "--port", port, "--max-workers", "1"])
    return served


def end_with(parent: int) -> bool:
    """End this process when ``parent`` ends; ``False`` if it is gone already.

    By a pidfd (Linux 5.3): the kernel's parent-death signal alone follows the *thread* that forked, which may be a
    short-lived one.
    """
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        return os.getppid() == parent
    if os.getppid() != parent:
        return False
    threading.Thread(target=_await_end, args=(watched,), name="parent-watch", daemon=True).start()
    return True


def _await_end(watched: int) -> None:
    select.select([watched], [], [])
    os.kill(os.getpid(), signal.SIGINT)
    # A call that holds the main thread must not keep an orphan alive.
    threading.Event().wait(_GRACE_S)
    os._exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
