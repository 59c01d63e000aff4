"""``.clipfleet/endpoints.json``: where the fleet of this folder answers, and whether it is alive.

Written by ``up`` and ``--local``, read by every command that was not told where its fleet is. A file is believed
only while the process that wrote it lives (same pid *and* start time: pids come back) and its Redis answers, and when
it is ours: in a shared folder such as /tmp anybody may leave a ``.clipfleet`` above our own folders.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["FILE", "FOLDER", "Endpoints", "find_live", "find_stopped", "process_start", "redis_answers"]

FOLDER = ".clipfleet"
FILE = "endpoints.json"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """A running local fleet.

    Attributes:
        pid: the process that owns it.
        start: that process's start time in clock ticks since boot; 0 where the system does not tell.
        command: what started it, for people: ``up``, ``index``.
        redis_url: its Redis.
        milvus_uri: its Milvus Lite; None when it was started without a store.
        queue: the queue that its worker serves.
        prefix: what that queue's keys start with.
        has_worker: whether it runs a worker.
    """

    pid: int
    start: int
    command: str
    redis_url: str
    milvus_uri: str | None
    queue: str
    prefix: str
    has_worker: bool

    def write(self, folder: Path) -> None:
        """Into ``folder``, atomically: a reader sees the old file, the new one or none."""
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{FILE}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"v": 1, **asdict(self)}, file, indent=1)
            Path(name).replace(folder / FILE)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, folder: Path) -> Endpoints | None:
        """From ``folder``; None when there is none or it makes no sense (a later release's, or cut off)."""
        try:
            data = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if data.pop("v") != 1:
                return None
            return cls(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def remove(self, folder: Path) -> None:
        """Take the file away, if it still is this one."""
        if Endpoints.read(folder) == self:
            (folder / FILE).unlink(missing_ok=True)

    def is_live(self) -> bool:
        """Whether its owner lives and its Redis answers."""
        start = process_start(self.pid)
        return start is not None and start == self.start and redis_answers(self.redis_url)


def find_live(start: Path) -> tuple[Endpoints, Path] | None:
    """The live fleet of ``start`` or of the nearest parent folder, and the ``.clipfleet`` that named it."""
    for place in (start, *start.parents):
        folder = place / FOLDER
        endpoints = Endpoints.read(folder)
        if endpoints is not None and _ours(folder / FILE) and endpoints.is_live():
            return endpoints, folder
    return None


def find_stopped(start: Path) -> tuple[Endpoints, Path] | None:
    """What a fleet of ``start`` or of the nearest parent folder left behind when it was killed."""
    for place in (start, *start.parents):
        folder = place / FOLDER
        endpoints = Endpoints.read(folder)
        if endpoints is not None and _ours(folder / FILE):
            return endpoints, folder
    return None


def _ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def process_start(pid: int) -> int | None:
    """When process ``pid`` started, in clock ticks since boot (``/proc/<pid>/stat`` field 22); None = it is gone.

    0 where there is no ``/proc``, so that both sides agree and the pid alone decides.
    """
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return 0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in brackets, may hold spaces and brackets itself: count from the last one.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def redis_answers(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether something that speaks Redis is at ``url``; an inline PING, so that no client library is imported."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout_s) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16)[:1] in {b"+", b"-"}
    except OSError:
        return False
