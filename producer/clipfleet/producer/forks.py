"""What a fork leaves in the child without its thread: told of it once, there, instead of asking at every request.

Servers that fork in C without Python's hooks (uWSGI, unless its ``py-call-osafterfork`` is set) tell nobody. There a
client must be used in the child alone, and what it begins with there is its own.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from clipfleet.schemas.request import forget_drawn_ids

__all__ = ["Inheritable"]


class Inheritable:
    """Something that only the process that made it may use.

    Attributes:
        inherited: whether this is a parent's, seen from its child.
    """

    def __init__(self) -> None:
        self.inherited = False
        forget_drawn_ids()
        _alive.add(self)

    def leave_to_parent(self) -> None:
        """Keep it from being finalised in this process: the connections of the parent would go with it."""
        _left_to_the_parent.append(self)


_alive: WeakSet[Inheritable] = WeakSet()
_left_to_the_parent: list[Inheritable] = []


def _forked() -> None:
    for each in _alive:
        each.inherited = True


os.register_at_fork(after_in_child=_forked)
