"""The Lua scripts of the protocol: their text is the contract (``lua/*.lua``, explained in docs/protocol.md)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Script", "load"]


@dataclass(frozen=True, slots=True)
class Script:
    """One script.

    Attributes:
        name: file name without ``.lua``.
        text: what EVAL and SCRIPT LOAD take.
        sha: what EVALSHA takes.
    """

    name: str
    text: str
    sha: str


@cache
def load(name: str) -> Script:
    """The script ``name``: admit, settle, settle_many, reclaim, renew, handback, leave, heartbeat or join.

    Raises:
        FileNotFoundError: when there is none of that name.
    """
    text = files("clipfleet.schemas").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
