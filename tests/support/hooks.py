"""Faults at named points, run inside the worker process (``WorkerConfig.hooks``)."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipfleet.worker.hooks import Hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.work import Work

POLL_S = 0.005


def _ids(batch: Sequence[Work]) -> list[str]:
    return [work.request.id for work in batch]


class Barrier(Hooks):
    """Stops at a point while ``hold-POINT`` exists there, until ``release-POINT`` does.

    Whoever passes the point while ``fail-POINT`` exists fails there.
    """

    def __init__(self) -> None:
        self._directory = Path(os.environ["CLIPFLEET_TEST_BARRIER"])

    def _point(self, name: str) -> None:
        if (self._directory / f"hold-{name}").exists() and not (self._directory / f"release-{name}").exists():
            (self._directory / f"{name}.{os.getpid()}").touch()
            while not (self._directory / f"release-{name}").exists():
                time.sleep(POLL_S)  # the other process can only make files
        if (self._directory / f"fail-{name}").exists():
            raise RuntimeError(f"told to fail at {name}")

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


class HeldWrite(Barrier):
    """Stops before rows are written (point ``write``), and nowhere else."""

    def before_store(self, stage: str, batch: Sequence[Work]) -> None:
        if stage.startswith("milvus_insert"):
            self._point("write")


class LongCall(Hooks):
    """A model call that blocks in C until somebody writes to the FIFO ``gil`` (it holds the GIL) or ``c``; once."""

    def __init__(self) -> None:
        self._directory = Path(os.environ["CLIPFLEET_TEST_BARRIER"])

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        # PyDLL keeps the GIL during the call, as a C extension with a long loop does; CDLL gives it up.
        for name, library in (("gil", ctypes.PyDLL(None)), ("c", ctypes.CDLL(None))):
            fifo = self._directory / name
            if fifo.is_fifo():
                (self._directory / f"call.{os.getpid()}").touch()
                os.close(library.open(os.fsencode(fifo), os.O_RDONLY))
                fifo.unlink()


class SlowDecode(Hooks):
    """Each decode takes 5 ms longer, on its thread alone."""

    def before_prepare(self, work: Work) -> None:
        time.sleep(0.005)  # the slowness itself


class Murderous(Hooks):
    """Faults by how a request's id begins.

    ``kill`` aborts the process in its model call, ``decodekill`` in its decode, ``oomkill`` is killed as the kernel
    does that lacks memory; ``raise`` raises, ``oom`` finds no memory for more than 16.
    """

    def __init__(self) -> None:
        self._directory = Path(os.environ["CLIPFLEET_TEST_BARRIER"])

    def _die(self, number: signal.Signals) -> None:
        (self._directory / f"death.{os.getpid()}").touch()
        # To this very thread: one that is sent to the process may find another, and this one goes on meanwhile.
        signal.pthread_kill(threading.get_ident(), number)

    def before_prepare(self, work: Work) -> None:
        if work.request.id.startswith("decodekill"):
            self._die(signal.SIGABRT)

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        ids = _ids(batch)
        if any(one.startswith("kill") for one in ids):
            self._die(signal.SIGABRT)
        if any(one.startswith("oomkill") for one in ids):
            self._die(signal.SIGKILL)
        if any(one.startswith("raise") for one in ids):
            raise RuntimeError("the model did not like it")
        if any(one.startswith("oom") for one in ids) and len(batch) > 16:
            raise MemoryError(f"no room for {len(batch)}")


class BadModel(Hooks):
    """A text tower with faults by how a request's id begins.

    ``nan`` gives NaN, ``few`` loses a row of its batch, ``all`` raises.
    """

    def __init__(self) -> None:
        from clipfleet.models.runtime import Runtime

        self._ids: list[str] = []
        encode_texts = Runtime.encode_texts

        def faulty(runtime: Runtime, ids: Sequence[Any]) -> Any:
            if any(name.startswith("all") for name in self._ids):
                raise RuntimeError("the model is of no use today")
            rows = encode_texts(runtime, ids)
            for place, name in enumerate(self._ids):
                if name.startswith("nan"):
                    rows[place] = float("nan")
            return rows[:-1] if any(name.startswith("few") for name in self._ids) else rows

        Runtime.encode_texts = faulty  # type: ignore[method-assign]

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        self._ids = _ids(batch)


class RateLimited(Barrier):
    """A Milvus that answers ``code=8`` (rate limit) to each upsert while the file ``limit`` exists."""

    def __init__(self) -> None:
        super().__init__()
        from pymilvus import MilvusClient, MilvusException

        upsert = MilvusClient.upsert

        def limited(client: Any, *args: Any, **kwargs: Any) -> Any:
            if (self._directory / "limit").exists():
                (self._directory / "limited").touch()
                raise MilvusException(8, "request is rejected by grpc RateLimiter middleware, please retry later")
            return upsert(client, *args, **kwargs)

        MilvusClient.upsert = limited


class WrongClock(Hooks):
    """This process's wall clock is an hour ahead."""

    def __init__(self) -> None:
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + 3600
        time.time_ns = lambda: real_ns() + 3600 * 10**9
