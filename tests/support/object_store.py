"""S3 as moto has it, in a process of its own; and what finds it there."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any, Self

import pytest

from support.redis_server import free_port
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["S3", "memory", "needed"]


def needed(package: str) -> ModuleType:
    """Import a package, or skip; where everything must be there, fail."""
    return __import__(package) if os.environ.get("CI") else pytest.importorskip(package)


@pytest.fixture
def memory() -> Iterator[Any]:
    """A store in fsspec's memory, empty at the end."""
    fs = needed("fsspec").filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


class S3:
    """A server, and the environment by which every client in this process and its children finds it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for package in ("s3fs", "moto", "flask"):
            needed(package)
        self.port = free_port()
        self._patch = monkeypatch

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{self.port}"),
            ("AWS_ACCESS_KEY_ID", "testing-key"),
            ("AWS_SECRET_ACCESS_KEY", "testing-secret"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            self._patch.setenv(name, value)
        wait_until(self._answers, 60, "moto answers")
        return self

    def __exit__(self, *_: object) -> None:
        # They are kept by what they were asked for with, and the next server has another address.
        needed("s3fs").S3FileSystem.clear_instance_cache()
        self._server.kill()
        self._server.wait()

    def files(self) -> Any:
        """Its files, by s3fs."""
        return needed("s3fs").S3FileSystem(skip_instance_cache=True, use_listings_cache=False)

    def _answers(self) -> bool:
        assert self._server.poll() is None
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=5).close()
        except OSError:
            return False
        return True
