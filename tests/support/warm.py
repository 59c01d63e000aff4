"""The real command in a process of its own, forked from one that has imported all that commands need.

A command's imports take several times what the command does, and there are hundreds of them. ``Warm.run`` is as
``subprocess.run([sys.executable, "-m", "clipfleet.cli", *args], ...)`` for its caller and for the command: it has its
own process, streams, folder and environment. Only what it imports is there already, so that what is tested about
importing, and what a process looks like from outside, needs ``subprocess``.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from support.cli import FLEET_VARIABLES, Done

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER = Path(__file__).with_name("warm_server.py")
# The session's, before any test has changed it: the process is started when the first one needs it.
ENVIRONMENT: dict[str, str] = {}
# What commands read themselves, and what the worker's code sets for a library that no command has loaded before.
THEIR_OWN = (*FLEET_VARIABLES, "PYTEST_", "ORT_DISABLE_TELEMETRY")


class Warm:
    """The process that commands are forked from; it ends with this one, or when it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
                # Pipes, as a command's own are: Python looks at what they are once.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )

    def close(self) -> None:
        self._control.close()
        self.process.communicate(timeout=20)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether ``environment`` differs in nothing that Python or a library reads when it is started or imported."""
        changed = {name for name, _ in environment.items() ^ ENVIRONMENT.items()}
        return all(name.startswith(THEIR_OWN) for name in changed)

    def run(
        self, args: Sequence[str | bytes], *, cwd: Path, env: Mapping[str, str], stdin: bytes, timeout: float
    ) -> Done:
        """Run ``clipfleet ARGS`` to its end.

        Raises:
            subprocess.TimeoutExpired: it has not come in ``timeout`` seconds; the command was killed.
        """
        asked = {"args": [os.fsdecode(one) for one in args], "cwd": str(cwd), "env": dict(env)}
        pipes = [os.pipe() for _ in range(3)]
        theirs, ours = [pipes[0][0], pipes[1][1], pipes[2][1]], [pipes[0][1], pipes[1][0], pipes[2][0]]
        answers, tell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answers:
            with self._lock, tell:
                socket.send_fds(self._control, [json.dumps(asked).encode()], [*theirs, tell.fileno()])
            for one in theirs:
                os.close(one)
            streams = _Streams(ours, stdin)
            answers.settimeout(timeout)
            pid = int(answers.recv(64))
            try:
                code = int(answers.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                answers.recv(64)
                raise subprocess.TimeoutExpired([*args], timeout, *streams.read()) from None
        out, err = streams.read()
        return Done(code, out.decode(), err.decode())


class _Streams:
    """Our ends of a command's streams, a thread for each: what is not read would stop it."""

    def __init__(self, descriptors: Sequence[int], given: bytes) -> None:
        writing, *reading = descriptors
        self._found = [b"", b""]
        self._threads = [threading.Thread(target=self._write, args=(writing, given))]
        self._threads += [threading.Thread(target=self._read, args=each) for each in enumerate(reading)]
        for thread in self._threads:
            thread.start()

    def read(self) -> list[bytes]:
        """All that it said, once nobody can say more."""
        for thread in self._threads:
            thread.join()
        return self._found

    def _write(self, descriptor: int, given: bytes) -> None:
        try:
            with open(descriptor, "wb") as stream:
                stream.write(given)
        except BrokenPipeError:
            pass  # it has ended without reading all of it

    def _read(self, place: int, descriptor: int) -> None:
        with open(descriptor, "rb") as stream:
            self._found[place] = stream.read()


@cache
def warm() -> Warm:
    """The one of this test process."""
    made = Warm()
    atexit.register(made.close)
    return made


def run_command(
    args: Sequence[str | bytes], *, cwd: Path, env: Mapping[str, str], stdin: bytes = b"", timeout: float = 60
) -> Done:
    """Run ``clipfleet ARGS`` to its end: forked where that makes no difference to it, else started."""
    if warm().serves(env):
        return warm().run(args, cwd=cwd, env=env, stdin=stdin, timeout=timeout)
    done = subprocess.run(
        [sys.executable, "-m", "clipfleet.cli", *args],
        cwd=cwd,
        env=env,
        input=stdin,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
