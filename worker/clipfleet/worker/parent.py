"""Die with the parent: a worker whose supervisor was killed must not go on as an orphan."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["die_with_parent"]

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the process ``parent_pid`` ends (Linux, prctl(2)).

    The signal is tied to the parent's *thread* that started this process, which must therefore live as long as it.
    Elsewhere the end of the control socket does the same a moment later.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before the request was made; then nobody would ever send the signal.
    if os.getppid() != parent_pid:
        os._exit(1)
