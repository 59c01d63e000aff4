"""Real workers for tests: a supervisor process with its own, and barriers to hold them at named points."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import redis

from clipfleet.schemas.scripts import load
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clipfleet.schemas.keys import QueueKeys
    from clipfleet.schemas.request import Request

TESTS = Path(__file__).parent.parent
TINY = TESTS / "unit" / "data" / "tiny-bundle"

_MAIN = """
import json, sys
from pathlib import Path
from clipfleet.worker import WorkerConfig, run
from clipfleet.worker.logs import configure
settings = json.loads(sys.argv[1])
settings["allow_roots"] = {name: Path(root) for name, root in settings.get("allow_roots", {}).items()}
configure("INFO")
sys.exit(run(WorkerConfig(**settings)))
"""


class WorkerProcess:
    """A supervisor and its worker processes; ``settings`` are those of ``WorkerConfig``.

    With ``hooks="support.hooks:Barrier"`` the directory ``barrier`` is where it says what it reached and waits.
    """

    def __init__(self, url: str, keys: QueueKeys, **settings: Any) -> None:
        self.keys = keys
        self.barrier = Path(tempfile.mkdtemp(prefix="clipfleet-barrier-"))
        self.settings = {
            "redis_url": url,
            "queue": keys.queue,
            "prefix": keys.prefix,
            "model": str(TINY),
            "decode_threads": 2,
            "threads": 1,
            **settings,
        }
        self.log_file = self.barrier / "worker.log"
        self._client = redis.Redis.from_url(url)

    def start(self, *, ready: bool = True) -> Self:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
            "CLIPFLEET_TEST_BARRIER": str(self.barrier),
            "OMP_NUM_THREADS": "1",
        }
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _MAIN, json.dumps(self.settings)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.await_ready() if ready else self

    def await_ready(self) -> Self:
        """Wait until every process has said that it lives."""
        wait_until(self._is_ready, 60, f"worker ready; its log: {self.log_file}")
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log[-4000:]
        return len(self.names) >= (self.settings.get("processes") or 1)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def names(self) -> list[str]:
        """Consumer names of its processes that said they live."""
        start = f".{self.process.pid}."
        return [one.decode() for one in self._client.zrange(self.keys.workers, 0, -1) if start in one.decode()]

    @property
    def children(self) -> list[psutil.Process]:
        """Its worker processes."""
        return psutil.Process(self.process.pid).children()

    def child(self) -> psutil.Process:
        return wait_until(lambda: (self.children or [None])[0], 20, "a worker process")

    def presence(self) -> list[dict[str, str]]:
        raw = [self._client.hgetall(self.keys.worker(name)) for name in self.names]
        return [{key.decode(): value.decode() for key, value in one.items()} for one in raw]

    def reached(self, point: str, count: int = 1) -> None:
        """Wait until ``count`` processes stand at the barrier ``point``."""
        wait_until(
            lambda: len(list(self.barrier.glob(f"{point}.*"))) >= count, 30, f"{point} reached\n{self.log[-2000:]}"
        )

    def release(self, point: str) -> None:
        """Let everybody pass ``point`` from now on."""
        (self.barrier / f"release-{point}").touch()

    def hold(self, point: str) -> None:
        """Make whoever comes stop at ``point``, until ``release``."""
        (self.barrier / f"hold-{point}").touch()

    def unhold(self, point: str) -> None:
        """Let whoever comes to ``point`` from now on pass; who stands there stays."""
        (self.barrier / f"hold-{point}").unlink()

    def group(self) -> list[psutil.Process]:
        """The supervisor and all its processes."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def terminate(self, timeout: float = 20.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill_all(self) -> None:
        """SIGKILL to the supervisor and everything below it."""
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for one in family:
                if one.is_running():
                    one.kill()
            psutil.wait_procs(family, timeout=10)
        self.process.wait()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill_all()
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self.process.poll() is None:
                self.terminate()
        finally:
            self.kill_all()
            # pytest shows it with a test that fails.
            print(self.log[-20_000:])
            self.close()

    def close(self) -> None:
        """Remove its folder, once it is gone."""
        shutil.rmtree(self.barrier)
        self._client.close()


def admit(
    client: redis.Redis,
    keys: QueueKeys,
    requests: Iterable[Request],
    *,
    lane: str = "interactive",
    ttl_ms: int = 60_000,
    call: str = "test.1",
) -> list[Any]:
    """One admit call with the protocol's script; its reply."""
    flat = [part for one in requests for part in (one.id, ttl_ms, one.encode())]
    name, _, number = call.partition(".")
    all_keys = [*keys.lanes, keys.fleet, keys.bytes, keys.call(f"{name}{os.urandom(4).hex()}", int(number))]
    reply: list[Any] = client.eval(load("admit").text, len(all_keys), *all_keys, lane, *flat)
    return reply


def results(client: redis.Redis, keys: QueueKeys, ids: Sequence[str], timeout: float = 30.0) -> dict[str, list[bytes]]:
    """Every entry of each request's result key, once all have one."""
    missing = list(dict.fromkeys(ids))

    def ask(call: str, asked: Sequence[str], *args: int) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        for one in asked:
            getattr(pipeline, call)(keys.result(one), *args)
        answers: list[Any] = pipeline.execute()
        return answers

    def all_there() -> bool:
        missing[:] = [one for one, there in zip(missing, ask("exists", missing), strict=True) if not there]
        return not missing

    wait_until(all_there, timeout, "a result for each request")
    return dict(zip(ids, ask("lrange", ids, 0, -1), strict=True))
