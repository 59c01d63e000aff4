"""The process that commands are forked from: see ``support.warm``. Started as a script, with a socket's descriptor."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

MESSAGE_BYTES = 1 << 20
# What commands import when they run, besides modules of ours.
THEIRS = ("PIL.Image", "numpy", "pymilvus", "rich.progress", "rich.table", "structlog", "tokenizers")


def load() -> None:
    """Import what the commands import, and start nothing by it: a fork has but one of its parent's threads."""
    # numpy's and pyarrow's libraries have some else.
    os.environ |= {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    for package in ("clipfleet.cli", "clipfleet.index", "clipfleet.producer", "clipfleet.store"):
        for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not each.name.endswith("__main__"):
                importlib.import_module(each.name)
    for name in THEIRS:
        importlib.import_module(name)
    threads = [one.name for one in Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, f"importing has started threads: {threads}"
    gc.collect()
    gc.freeze()


def await_command(control: socket.socket) -> list[str]:
    """Return in the process of a command, with its arguments; in this one only raise SystemExit at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 4)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:  # whoever started this is gone
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return begin(json.loads(message), descriptors)
        for one in descriptors:
            os.close(one)


def begin(asked: dict, descriptors: list[int]) -> list[str]:
    """Become the command, or the one that tells how it ended; the command returns."""
    *streams, answers = descriptors
    command = os.fork()
    if command:
        for each in (0, 1, *streams):
            os.close(each)
        tell = socket.socket(fileno=answers)
        tell.send(b"%d" % command)
        _, status = os.waitpid(command, 0)
        tell.send(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.close(answers)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    return asked["args"]


if __name__ == "__main__":
    load()
    sys.argv[1:] = await_command(socket.socket(fileno=int(sys.argv[1])))
    sys.path[0] = ""  # as with `python -m`: the command's folder
    try:
        runpy.run_module("clipfleet.cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        # As Python ends, but for taking all apart that was imported: that takes longer than the command did.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)
