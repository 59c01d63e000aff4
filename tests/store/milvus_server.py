"""A real Milvus for the tests: the binary inside PyPI's ``milvus==2.3.5`` wheel, run as a subprocess.

The wheel's own ``start()`` blocks for three minutes on a dead child, so it is only a box to unpack here: the
binaries are decompressed once into a cache (``CLIPFLEET_TEST_MILVUS_DIR``, else ``~/.cache/clipfleet/milvus``), each
run gets a fresh data directory. Its embedded etcd insists on ports 2379 and 2380, so one server runs on a host at a
time: a lock in the cache makes the second test run wait for the first.

``PYTHONPATH=tests python -m store.milvus_server`` runs one until it is interrupted, for a benchmark.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import lzma
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

__all__ = ["MilvusServer", "Unobtainable", "free_port", "is_unpacked"]

_REQUIREMENT = "milvus==2.3.5"
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)(?:\(\w+\))?(?::\s*([^}]*?))?\s*\}\}")


class Unobtainable(RuntimeError):
    """The server cannot be had on this machine."""


def free_port() -> int:
    """A TCP port that was free a moment ago on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cache() -> Path:
    given = os.environ.get("CLIPFLEET_TEST_MILVUS_DIR")
    return Path(given) if given else Path.home() / ".cache" / "clipfleet" / "milvus"


def is_unpacked() -> bool:
    """Whether the server is on this machine already."""
    return (_cache() / "complete").exists()


def _unpacked() -> Path:
    """The directory with ``bin/`` and ``config.yaml.template``, made on the first call."""
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "unpack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "complete").exists():
            _unpack(_wheel(cache), cache)
            (cache / "complete").touch()
    return cache


def _wheel(cache: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), _REQUIREMENT]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    except (subprocess.SubprocessError, OSError) as error:
        raise Unobtainable(f"pip cannot download {_REQUIREMENT}: {error}") from error
    return next(cache.glob("milvus-*.whl"))


def _unpack(wheel: Path, cache: Path) -> None:
    (cache / "bin").mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = Path(name)
            if path.suffix == ".lzma":
                target = cache / "bin" / path.stem
                with archive.open(name) as packed, lzma.open(packed) as raw, target.open("wb") as out:
                    shutil.copyfileobj(raw, out)
                target.chmod(0o755)
            elif path.name in {"config.yaml.template", "glog.conf"}:
                (cache / path.name).write_bytes(archive.read(name))
    wheel.unlink()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class MilvusServer:
    """One Milvus standalone on loopback ports of its own; ``start``, ``kill`` and ``start`` again keep the data."""

    def __init__(self, root: Path | None = None, *, instead_of: MilvusServer | None = None) -> None:
        """Make its place.

        Args:
            root: where its data are.
            instead_of: one of this process that does not run while this one does.
        """
        self._box = _unpacked()
        self.root = root or Path(tempfile.mkdtemp(prefix="milvus-"))
        self.port = free_port()
        self._metrics_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._host_lock = (self._box / "host.lock").open("w") if instead_of is None else instead_of._host_lock
        if instead_of is None:
            fcntl.flock(self._host_lock, fcntl.LOCK_EX)
        self._write_config()

    @property
    def uri(self) -> str:
        """Where pymilvus reaches it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def _write_config(self) -> None:
        values = {"proxy_port": str(self.port), "etcd_data_dir": str(self.root / "etcd")}
        values |= {"local_storage_dir": str(self.root / "data"), "rocksmq_data_dir": str(self.root / "rocksmq")}
        values |= {"system_log_path": str(self.root / "logs"), "etcd_log_level": "error"}
        values |= {"etcd_log_path": str(self.root / "etcd.log")}

        def fill(match: re.Match[str]) -> str:
            name, default = match.group(1), match.group(2)
            if name in values:
                return values[name]
            return str(free_port()) if name.endswith("_port") and name != "etcd_port" else (default or "")

        (self.root / "configs").mkdir(parents=True, exist_ok=True)
        (self.root / "logs").mkdir(exist_ok=True)
        template = (self._box / "config.yaml.template").read_text()
        (self.root / "configs" / "milvus.yaml").write_text(_PLACEHOLDER.sub(fill, template))
        shutil.copy(self._box / "glog.conf", self.root / "configs" / "glog.conf")

    def start(self, timeout_s: float = 60.0, **settings: str) -> None:
        """Start it and wait for its health page, which comes before it answers queries.

        Args:
            timeout_s: until then.
            settings: of milvus.yaml, as Milvus reads them from its environment: ``COMMON_SECURITY_TLSMODE="1"``.

        Raises:
            RuntimeError: it exited or stayed silent; the message ends with its log.
        """
        environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._metrics_port),
            "MILVUS_RUN_DIR": str(self.root / "run"),
            "LD_LIBRARY_PATH": str(self._box / "bin"),
            **settings,
        }
        with (self.root / "stdout.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._box / "bin" / "milvus"), "run", "standalone"],
                cwd=self.root,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # An orphan would keep etcd's ports from every later run; the child only makes one system call here.
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - see above
            )
        deadline = time.monotonic() + timeout_s
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self.root / "stdout.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"Milvus did not start: {tail}")
            time.sleep(0.1)  # between two looks at its health page

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/healthz", timeout=2) as page:
                return b"OK" in page.read()
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """``kill -9``, as a crash would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Kill it, delete its data, let the next one run."""
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)
        self._host_lock.close()


def main() -> None:
    """Run one, say where, and end it with an interrupt."""
    server = MilvusServer()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.start()
        print(server.uri, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    finally:
        server.close()


if __name__ == "__main__":
    main()
