"""Milvus Lite as a server that one process owns: the store of ``clipfleet up`` and ``--local``.

Milvus Lite 3.2 loses acknowledged rows under concurrent access (64 to 256 of 24,000 in five of six trials) unless its
server runs one worker thread (none in five). So it is always run like that, never opened as a file by workers, and
never in a version that was not tried. This module needs no pymilvus to be imported.

What it is good for: 100,000 rows; exact (FLAT) search up to about 50,000, HNSW above. Its log is not fsynced: what it
has acknowledged survives the death of a process, not of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from clipfleet.schemas.errors import ClipfleetError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["LITE_ROW_LIMIT", "UNFLUSHED_BYTES", "LiteError", "LiteServer", "check_lite_version", "lite_advice"]

LITE_ROW_LIMIT: Final = 100_000
_TRIED: Final = ("3.2.",)
# Workers alone are told where the store is: `up`, `index` and `search` find it through them.
_SERVER_INSTEAD: Final = "run a Milvus server with workers of its own (clipfleet worker --milvus-uri http://HOST:19530)"
# Unflushed rows are searched one by one, and a flush is part of the write that makes it due, which all others wait for.
# Both grow with what is unflushed, by bytes more than by rows. CPU of the server with 256 dimensions, writes of 16 rows
# and a search after each third, at 4 MB (Lite's own default is 128) and at 250 KB: a search 75 and 18 ms, the longest
# write 411 and 41 ms, 350 and 275 us a row; in writes of 512 rows 214 and 220 us a row. Half of it: twice a row's cost.
UNFLUSHED_BYTES: Final = 250_000
_ENVIRONMENT: Final = {"MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES": str(UNFLUSHED_BYTES)}
_LOG_BYTES: Final = 5_000_000
_VERSION_CALL: Final = "/milvus.proto.milvus.MilvusService/GetVersion"


class LiteError(ClipfleetError):
    """Milvus Lite cannot be run here; the text says why and what to do."""


def check_lite_version() -> str:
    """The installed version of milvus-lite.

    Raises:
        LiteError: it is missing, or a version that was not tried for lost rows.
    """
    try:
        version = importlib.metadata.version("milvus-lite")
    except importlib.metadata.PackageNotFoundError:
        raise LiteError('Milvus Lite is not installed: pip install "clipfleet[local]"') from None
    if not version.startswith(_TRIED):
        raise LiteError(
            f"milvus-lite {version} was not tried with clipfleet (3.2 was: others lose rows in other ways): "
            f'pip install "milvus-lite>=3.2,<3.3", or {_SERVER_INSTEAD}'
        )
    return version


def lite_advice(rows: int) -> str | None:
    """What to tell somebody who has ``rows`` rows in Milvus Lite, if anything."""
    if rows <= LITE_ROW_LIMIT:
        return None
    return (
        f"{rows:,} rows are more than Milvus Lite is good for ({LITE_ROW_LIMIT:,}): {_SERVER_INSTEAD} and index there"
    )


class LiteServer:
    """A Milvus Lite server process over one folder, on a loopback port.

    It ends with the process that started it, whatever ended that one. The owner calls ``ensure_alive`` now and then;
    the port stays, so clients find the restarted one. Usable as a context manager. Not thread-safe: one owner.

    Args:
        data_dir: holds the data (``milvus/``), the log (``milvus-lite.log``) and the lock; made when missing.
        port: on 127.0.0.1; a free one by default.
        start_timeout_s: how long a start may take; opening grows with the data.
    """

    def __init__(
        self, data_dir: str | os.PathLike[str], port: int | None = None, *, start_timeout_s: float = 60
    ) -> None:
        self._dir = Path(data_dir).absolute()
        self._port = port or 0
        self._timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self.restarts = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def uri(self) -> str:
        """Its address, for ``StoreConfig``; known once started."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's process, ``None`` when it is not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log_file(self) -> Path:
        """Where it writes what it has to say."""
        return self._dir / "milvus-lite.log"

    def start(self) -> Self:
        """Start the server and wait until it answers a call.

        Raises:
            LiteError: not installed or not a tried version; the folder is in use; the port is taken; it died.
        """
        check_lite_version()
        self._dir.mkdir(parents=True, exist_ok=True)
        self._acquire()
        try:
            self._port = self._port or _free_port()
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def ensure_alive(self) -> bool:
        """Start it again if it has died; ``True`` if that was so.

        A busy server (it may load for 40 s, one call at a time) is not a dead one and is left alone.

        Raises:
            LiteError: it cannot be started again.
        """
        if self._lock is None:
            raise LiteError("this Milvus Lite was not started, or stopped")
        if self.pid is not None:
            return False
        self.restarts += 1
        self._launch()
        return True

    def probe(self, timeout_s: float = 1.0) -> bool:
        """Whether it answers a call now."""
        import grpc  # noqa: PLC0415 - only the owner of a server needs it

        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            ask = channel.unary_unary(_VERSION_CALL)
            try:
                return b"milvus_lite" in ask(b"", timeout=timeout_s)
            except grpc.RpcError:
                return False

    def stop(self, grace_s: float = 15.0) -> None:
        """End it, giving it ``grace_s`` to close its files, and release the folder; safe to call twice."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _acquire(self) -> None:
        """Hold the folder's lock until both this process and its server are gone."""
        if self._lock is not None:
            raise LiteError(f"this Milvus Lite is running already, at {self.uri}")
        lock = (self._dir / "lite.lock").open("a+")
        deadline = time.monotonic() + self._timeout_s
        while not _try_lock(lock):
            owner = _read_owner(lock)
            pid = int(owner.get("pid", 0))
            # A dead owner's server closes its files and goes within moments; a living one keeps the folder.
            if _is_alive(pid) or time.monotonic() > deadline:
                lock.close()
                where = f" at {owner['uri']}" if owner.get("uri") else ""
                raise LiteError(
                    f"{self._dir} is in use by process {pid or 'unknown'}: its Milvus Lite runs{where}; "
                    "attach to it, stop it, or choose another folder"
                )
            time.sleep(0.05)
        self._lock = lock

    def _launch(self) -> None:
        if self._lock is None:  # pragma: no cover - start and ensure_alive see to it
            raise LiteError("not started")
        if _is_taken(self._port):
            raise LiteError(f"port {self._port} on 127.0.0.1 is taken by another program")
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        command = [sys.executable, "-m", "clipfleet.store.lite_process"]
        command += [str(os.getpid()), str(self._dir / "milvus"), str(self._port)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | _ENVIRONMENT,
                pass_fds=(self._lock.fileno(),),
            )
        self._await_answer(self._process)
        self._lock.truncate(0)
        self._lock.write(json.dumps({"pid": os.getpid(), "uri": self.uri}))
        self._lock.flush()

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not self.probe():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                tail = self.log_file.read_text(errors="replace")[-1000:].strip()
                raise LiteError(f"Milvus Lite did not start over {self._dir}; the end of {self.log_file}: {tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_taken(port: int) -> bool:
    # gRPC binds with SO_REUSEPORT: a second server on a port does not fail, the two share its callers at random.
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) != errno.ECONNREFUSED


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _read_owner(lock: IO[str]) -> dict[str, str]:
    try:
        lock.seek(0)
        owner = json.loads(lock.read())
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The state follows the name in parentheses; a zombie holds nothing any more.
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
