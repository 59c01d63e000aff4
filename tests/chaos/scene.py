"""A whole fleet under a steady load: Redis, Milvus Lite, workers, and producers that remember what they were told."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from chaos.checks import LEASE_MS, picture
from clipfleet.producer import Client, RequestFailed
from clipfleet.schemas.keys import QueueKeys
from clipfleet.store.lite import LiteServer
from support.fleet import WorkerProcess
from support.proxy import Proxy
from support.redis_server import RedisServer, find_redis_server

if TYPE_CHECKING:
    from pathlib import Path

    from clipfleet.producer import Job
    from clipfleet.schemas.result import Result

WORKERS, PRODUCERS = 3, 3
RATE = 12.0  # requests a second and producer
VARIETY = 40  # distinct texts and pictures: each is known, and embedded in peace before the faults begin
COLLECTION = "audit"
TIMEOUT_S = 240.0  # far more than all the delays that faults may cause: whatever expires was lost
KINDS = ("embed_text", "echo", "index_image")
KILLER = "killer"


@dataclass
class Sent:
    """One request and what became of it."""

    kind: str
    number: int
    job: Job
    outcome: str = ""
    result: Result | None = None


def inputs_of(kind: str, number: int, name: str) -> tuple[str, dict[str, Any]]:
    """The pipeline and what it gets."""
    match kind:
        case "embed_text":
            return kind, {"text": f"thing number {number % VARIETY}"}
        case "index_image":
            image = picture(number % VARIETY)
            return kind, {"image": image, "id": name, "collection": COLLECTION, "metadata": {"n": number}}
        case _:
            return "echo" if kind == "echo" else "embed_text", {"data": number, "text": "poison"}


@dataclass
class Producer:
    """Sends at a steady rate; its answers come to an inbox, or to a key each."""

    url: str
    keys: QueueKeys
    name: str
    by_key: bool
    pick: random.Random
    sent: list[Sent] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.client = Client(
            self.url, queue=self.keys.queue, prefix=self.keys.prefix, wait_for_worker=True, timeout=TIMEOUT_S
        )
        self._thread = threading.Thread(target=self._run, name=self.name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait for every answer."""
        self._stop.set()
        self._thread.join()
        for one in self.sent:
            try:
                one.result = one.job.result()
                one.outcome = "ok"
            except RequestFailed as error:
                one.outcome = str(error.code)
        self.client.close()

    def send(self, kind: str) -> None:
        number = next(self._numbers)
        name = f"{'kill' if kind == KILLER else self.name}-{number}"
        pipeline, inputs = inputs_of(kind, number, name)
        day_ms = 86_400_000
        options = {"reply": "key", "reply_ttl_ms": day_ms} if self.by_key else {}
        job = self.client.submit(pipeline, inputs, id=name, **options)
        self.sent.append(Sent(kind, number, job))

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += 1.0 / RATE
            self.send(self.pick.choices(KINDS, (5, 3, 2))[0])


class Scene:
    """Everything that faults happen to. ``with Scene(folder, seed) as scene:``"""

    def __init__(self, folder: Path, seed: int) -> None:
        binary = find_redis_server()
        assert binary is not None, "no redis-server"
        self.redis = RedisServer(binary, appendonly="yes", appendfsync="always")
        self.lite = LiteServer(folder / "lite")
        self.keys = QueueKeys(f"audit{seed}")
        self.workers: list[WorkerProcess] = []
        self.retired: list[WorkerProcess] = []
        self.producers: list[Producer] = []
        self.proxies: list[Proxy] = []
        self.restarted = 0
        self._seed = seed
        self._time = threading.Event()

    def __enter__(self) -> Self:
        try:
            self.redis.start()
            self.lite.start()
            self.proxies = [Proxy(self.redis.port), Proxy(self.redis.port)]
            self.workers = [self._worker() for _ in range(WORKERS)]
            for worker in self.workers:
                worker.await_ready()
        except BaseException:
            self.__exit__()
            raise
        self.producers = [
            Producer(self.url, self.keys, f"p{i}", by_key=i == 0, pick=random.Random(self._seed * 100 + i))
            for i in range(PRODUCERS)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self.workers, *self.retired):
            worker.kill_all()
            worker.close()
        for proxy in self.proxies:
            proxy.close()
        self.lite.stop()
        self.redis.close()

    @property
    def url(self) -> str:
        """Where clients find Redis."""
        return self.proxies[0].url

    def replace(self, worker: WorkerProcess) -> None:
        """Start another worker in the place of one that ends."""
        self.workers[self.workers.index(worker)] = self._worker()
        self.retired.append(worker)

    def look_after(self) -> None:
        """Start anew what has ended, as a service manager does."""
        for worker in list(self.workers):
            if worker.process.poll() is not None:
                self.replace(worker)
                self.restarted += 1

    def go_on_for(self, seconds: float) -> None:
        """Let the load flow for a while."""
        self._time.wait(seconds)

    def _worker(self) -> WorkerProcess:
        worker = WorkerProcess(
            self.redis.url,
            self.keys,
            redis_url=self.proxies[1].url,
            milvus_uri=self.lite.uri,
            lease_ms=LEASE_MS,
            hooks="support.hooks:Murderous",
        )
        return worker.start(ready=False)
