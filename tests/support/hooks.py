"""Faults at named points, run inside the worker process (``WorkerConfig.hooks``)."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.worker.hooks import Hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.work import Work

POLL_S = 0.005


def _ids(batch: Sequence[Work]) -> list[str]:
    return [work.request.id for work in batch]


class Barrier(Hooks):
    """Stops at a point while ``hold-POINT`` exists there, until ``release-POINT`` does."""

    def __init__(self) -> None:
        self._directory = Path(os.environ["CLIPFLEET_TEST_BARRIER"])

    def _point(self, name: str) -> None:
        if (self._directory / f"hold-{name}").exists() and not (self._directory / f"release-{name}").exists():
            (self._directory / f"{name}.{os.getpid()}").touch()
            while not (self._directory / f"release-{name}").exists():
                time.sleep(POLL_S)

    def before_prepare(self, work: Work) -> None:
        self._point("prepare")

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        self._point("call")

    def before_store(self, stage: str, batch: Sequence[Work]) -> None:
        self._point("store")

    def after_store(self, stage: str, batch: Sequence[Work]) -> None:
        self._point("stored")

    def before_settle(self, count: int) -> None:
        self._point("settle")


class HoldsGil(Hooks):
    """A model call that holds the GIL for as many seconds as the file ``gil`` says, once."""

    def __init__(self) -> None:
        self._directory = Path(os.environ["CLIPFLEET_TEST_BARRIER"])

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        wish = self._directory / "gil"
        if wish.exists():
            seconds = int(wish.read_text())
            wish.unlink()
            (self._directory / f"call.{os.getpid()}").touch()
            # PyDLL keeps the GIL during the call, as a C extension with a long loop does.
            ctypes.PyDLL(None).sleep(seconds)


class SlowDecode(Hooks):
    """Each decode takes 5 ms longer, on its thread alone."""

    def before_prepare(self, work: Work) -> None:
        time.sleep(0.005)


class Murderous(Hooks):
    """A request whose id begins with ``kill`` aborts the process in its model call; ``raise``, ``oom``: likewise."""

    def __init__(self) -> None:
        self._directory = Path(os.environ["CLIPFLEET_TEST_BARRIER"])

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        ids = _ids(batch)
        if any(one.startswith("kill") for one in ids):
            (self._directory / f"death.{os.getpid()}").touch()
            os.abort()
        if any(one.startswith("raise") for one in ids):
            raise RuntimeError("the model did not like it")
        if any(one.startswith("oom") for one in ids) and len(batch) > 16:
            raise MemoryError(f"no room for {len(batch)}")
