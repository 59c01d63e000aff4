"""Redis, Milvus Lite and a worker, started in order, watched, stopped in the reverse order.

The owner holds an exclusive lock on ``.clipfleet/owner.lock``; commands that merely use the fleet hold a shared one
on ``.clipfleet/users.lock``, so that an embedded fleet (``--local``) does not end under somebody else's command.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError
from clipfleet.cli.local.child import Child
from clipfleet.cli.local.endpoints import Endpoints, process_start
from clipfleet.cli.local.redis import RedisServer, free_port
from clipfleet.cli.local.watch import gone, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from clipfleet.store.lite import LiteServer

__all__ = ["FolderBusy", "Stack", "StackOptions", "open_local", "using"]

WORKER_READY_S: Final = 120.0
_WORKER_STOP_S: Final = 15.0
_POLL_S: Final = 0.05
_WATCH_S: Final = 1.0
# A worker that ends this often within a minute will not get better by being started again.
_MAX_RESTARTS: Final = 3
_RESTART_WINDOW_S: Final = 60.0


class FolderBusy(CliError):
    """Another process owns the folder's fleet."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start.

    Attributes:
        folder: the ``.clipfleet`` that holds its data; made when missing.
        command: who starts it, for people.
        queue: the queue that the worker serves.
        prefix: what its keys start with.
        store: whether Milvus Lite is needed.
        worker: whether a worker is needed.
        port: Redis' port; None = a free one.
        worker_flags: more flags for ``clipfleet worker``.
    """

    folder: Path
    command: str
    queue: str
    prefix: str
    store: bool = True
    worker: bool = True
    port: int | None = None
    worker_flags: tuple[str, ...] = ()


class Stack:
    """A local fleet of this process.

    Attributes:
        options: what was asked for.
        endpoints: where it answers, once started.
    """

    def __init__(self, options: StackOptions, *, say: Callable[[str], None] = lambda _line: None) -> None:
        self.options = options
        self.endpoints: Endpoints | None = None
        self._say = say
        self._redis = RedisServer(options.folder / "redis", port=options.port)
        self._milvus: LiteServer | None = None
        self._worker: Child | None = None
        self._restarts: list[float] = []
        self._locks = contextlib.ExitStack()

    def start(self) -> None:
        """Start everything and write ``endpoints.json``; on failure whatever was started is stopped again.

        Raises:
            CliError: another fleet owns the folder, or a part does not start.
        """
        folder = self.options.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            owner = _lock(folder / "owner.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CliError(
                f"{folder} cannot be written: {error.strerror}", hint="Run it in a folder of your own."
            ) from None
        if owner is None:
            raise FolderBusy(_running(folder), hint="Use it, or stop it first (Ctrl-C in its terminal).")
        self._locks.enter_context(owner)
        try:
            self._start_parts()
        except BaseException:
            self.stop()
            raise

    @property
    def live(self) -> tuple[Endpoints, Path]:
        """Where it answers and its folder, as ``find_live`` gives them.

        Raises:
            CliError: it was not started.
        """
        if self.endpoints is None:
            raise CliError("the local fleet is not started")
        return self.endpoints, self.options.folder

    def _start_parts(self) -> None:
        options = self.options
        self._say("starting Redis")
        self._redis.start()
        if options.store:
            self._milvus = _milvus(options.folder / "milvus")
        self.endpoints = Endpoints(
            pid=os.getpid(),
            start=process_start(os.getpid()) or 0,
            command=options.command,
            redis_url=self._redis.url,
            milvus_uri=None if self._milvus is None else self._milvus.uri,
            queue=options.queue,
            prefix=options.prefix,
            # `worker --local` becomes the worker itself.
            has_worker=options.worker or options.command == "worker",
        )
        with contextlib.ExitStack() as ready:
            if options.worker:
                # First, since it takes longest; it asks for Milvus only when a request needs it.
                self._say("starting a worker")
                ready.enter_context(self._worker_started(self.endpoints))
            if self._milvus is not None:
                self._say("starting Milvus Lite")
                self._milvus.start()
        self.endpoints.write(options.folder)

    @contextlib.contextmanager
    def _worker_started(self, endpoints: Endpoints) -> Iterator[None]:
        """Start a worker at the beginning, wait until it serves at the end."""
        from clipfleet.cli.queue import QueueView  # noqa: PLC0415  redis takes its time to import

        argv = [sys.executable, "-m", "clipfleet.cli", "worker", *self.options.worker_flags]
        log = self.options.folder / "worker.log"
        with QueueView.open(endpoints.redis_url, self.options.queue, self.options.prefix) as queue:
            # The presence of a worker that was killed a moment ago may still be there: wait for a new name.
            before = set(queue.living_workers())
            self._worker = Child("worker", argv, log=log, env=_worker_env(endpoints, self.options.prefix))
            # Killed at once when we are: its leases make that safe, and its Redis goes with us anyway.
            self._worker.start(death_signal=signal.SIGKILL)
            yield
            deadline = time.monotonic() + WORKER_READY_S
            while not set(queue.living_workers()) - before:
                if not self._worker.alive():
                    raise CliError(f"the worker did not start; its log ({log}) ends:\n{self._worker.log_tail()}")
                if time.monotonic() > deadline:
                    raise CliError(f"the worker was not ready within {WORKER_READY_S:.0f} s; its log is {log}")
                time.sleep(_POLL_S)  # between two looks at the workers that have joined

    def watch(self, wait: Callable[[float], bool]) -> None:
        """Keep it running until ``wait(seconds)`` says that it shall end.

        Milvus Lite and the worker are started again when they die; Redis is not, since what it held in memory beyond
        its last sync is gone and somebody should know.

        Raises:
            CliError: Redis died, or a part that will not stay up.
        """
        while not wait(_WATCH_S):
            self.check()

    def check(self) -> None:
        """One look at all parts; see ``watch``."""
        if not self._redis.alive():
            raise CliError(self.lost(), hint="Start it again.")
        if self._milvus is not None:
            self._milvus.ensure_alive()
        if self._worker is not None and self.endpoints is not None and not self._worker.alive():
            now = time.monotonic()
            self._restarts = [at for at in self._restarts if now - at < _RESTART_WINDOW_S]
            if len(self._restarts) >= _MAX_RESTARTS:
                raise CliError(f"the worker keeps ending; its log ends:\n{self._worker.log_tail()}")
            self._restarts.append(now)
            self._say(f"the worker ended with code {self._worker.exit_code()}; starting another")
            with self._worker_started(self.endpoints):
                pass

    def lost(self) -> str:
        """Which part has ended, with the end of its log; empty while all of them run."""
        if not self._redis.alive():
            return f"Redis ended by itself; its log ends:\n{self._redis.log_tail()}"
        if self._milvus is not None and self._milvus.pid is None:
            return f"Milvus Lite ended by itself; its log is {self._milvus.log_file}"
        if self._worker is not None and not self._worker.alive():
            return f"the worker ended with code {self._worker.exit_code()}; its log ends:\n{self._worker.log_tail()}"
        return ""

    def stop(self) -> None:
        """Stop the worker, then Milvus Lite, then Redis: each may still need the next while it ends."""
        with self._locks:
            if self.endpoints is not None:
                self.endpoints.remove(self.options.folder)
            if self._worker is not None:
                self._say("stopping the worker")
                self._worker.stop(grace_s=_WORKER_STOP_S)
            if self._milvus is not None:
                self._say("stopping Milvus Lite")
                self._milvus.stop()
            self._say("stopping Redis")
            self._redis.stop()

    def retire(self) -> None:
        """Wait until no other command uses this fleet, and let none begin."""
        path = self.options.folder / "users.lock"
        alone = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if alone is None:
            self._say("waiting for another command that uses this fleet")
            alone = _lock(path, fcntl.LOCK_EX)
        with alone or contextlib.nullcontext():
            if self.endpoints is not None:
                self.endpoints.remove(self.options.folder)


@contextlib.contextmanager
def using(live: tuple[Endpoints, Path]) -> Iterator[bool]:
    """Hold a found fleet in place; False when it has gone since it was found."""
    endpoints, folder = live
    try:
        lock = _lock(folder / "users.lock", fcntl.LOCK_SH)
    except OSError:  # somebody else's folder, read-only for us: it may end under us
        lock = None
    with lock or contextlib.nullcontext():
        yield Endpoints.read(folder) == endpoints


@contextlib.contextmanager
def open_local(
    options: StackOptions, find: Callable[[], tuple[Endpoints, Path] | None], *, say: Callable[[str], None]
) -> Iterator[tuple[Endpoints, Path]]:
    """The local fleet for the length of one command: the one that ``find`` finds, else an embedded one.

    Raises:
        CliError: the live one lacks what is needed, or an embedded one does not start.
    """
    deadline = time.monotonic() + WORKER_READY_S
    while True:
        live = find()
        if live is not None:
            with using(live) as still_there:
                if still_there:
                    _check_parts(options, live)
                    with watched(gone(live)):
                        yield live
                    return
        stack = Stack(options, say=say)
        try:
            stack.start()
        except FolderBusy:
            # Just starting or stopping: in a moment there is one to attach to, or none.
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)  # between two tries for the folder, which another process holds
            continue
        try:
            with watched(stack.lost):
                yield stack.live
            stack.retire()
        finally:
            stack.stop()
        return


def _check_parts(options: StackOptions, live: tuple[Endpoints, Path]) -> None:
    endpoints, folder = live
    lacking = "a store" if options.store and endpoints.milvus_uri is None else ""
    lacking = lacking or ("a worker" if options.worker and not endpoints.has_worker else "")
    if lacking:
        raise CliError(
            f"the fleet of {folder} was started without {lacking} by 'clipfleet {endpoints.command}'"
            f" (pid {endpoints.pid})",
            hint="Wait for that command to end, then run this again.",
        )


def _lock(path: Path, mode: int) -> IO[bytes] | None:
    """``path`` opened and locked, to be closed by the caller; None when somebody else holds it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, mode)
    except BlockingIOError:
        file.close()
        return None
    return file


def _running(folder: Path) -> str:
    other = Endpoints.read(folder)
    if other is None:
        return f"another clipfleet is just starting or stopping in {folder}"
    return (
        f"a fleet of this folder runs already: 'clipfleet {other.command}' with pid {other.pid},"
        f" redis {other.redis_url}, queue {other.queue} ({folder})"
    )


def _milvus(folder: Path) -> LiteServer:
    from clipfleet.store.lite import LiteServer  # noqa: PLC0415  only with a store

    # The port is chosen here, so that the worker can be told before Milvus Lite answers.
    return LiteServer(folder, free_port())


def _worker_env(endpoints: Endpoints, prefix: str) -> Mapping[str, str]:
    """By environment, not by flag: a URL may hold a password, and everybody reads the process list."""
    env = {
        **os.environ,
        "CLIPFLEET_REDIS_URL": endpoints.redis_url,
        "CLIPFLEET_QUEUE": endpoints.queue,
        "CLIPFLEET_PREFIX": prefix,
    }
    for name in ("MILVUS_URI", "MILVUS_URI_FILE", "MILVUS_CA_FILE"):
        env.pop(name, None)
        env.pop(f"CLIPFLEET_{name}", None)
    if endpoints.milvus_uri:
        env["CLIPFLEET_MILVUS_URI"] = endpoints.milvus_uri
    return env
