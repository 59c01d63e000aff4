"""Which process this is: looked at for every request, and a system call each time would be felt."""

from __future__ import annotations

import os

__all__ = ["is_own"]

_own = os.getpid()


def is_own(pid: int) -> bool:
    """Whether ``pid`` is this process's; in the child of a fork its parent's is not."""
    return pid == _own


def _forked() -> None:
    global _own  # noqa: PLW0603 - the process's own, as its number is
    _own = os.getpid()


os.register_at_fork(after_in_child=_forked)
