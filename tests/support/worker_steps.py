"""A worker process without its threads, for tests that go step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.pipeline.engine import Engine
from clipfleet.schemas.request import Request
from clipfleet.worker.assembly import assemble
from clipfleet.worker.clock import ServerClock
from clipfleet.worker.config import NO_MODEL, WorkerConfig
from clipfleet.worker.context import Context
from clipfleet.worker.intake import Intake
from clipfleet.worker.ledger import Ledger
from clipfleet.worker.settler import Outcome, Settler
from clipfleet.worker.stream import QueueStream
from clipfleet.worker.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.pipeline.program import Served
    from clipfleet.schemas.keys import QueueKeys
    from clipfleet.worker.entry import Entry
    from support.redis_server import RedisServer

LEASE_MS = 10_000


class _Held(Settler):
    """What ends in the thread that read it waits to be told to: a no-op is to stand for work that takes its time."""

    def settle_over(self, stream: QueueStream, outcomes: list[Outcome]) -> None:
        self.put(outcomes)


class Steps:
    """The parts of a worker process without their threads: what is read is run at once, and settled when told to."""

    def __init__(
        self, url: str, keys: QueueKeys, max_batch_size: int, serve: Callable[[Served], Served] = lambda served: served
    ) -> None:
        config = WorkerConfig(
            redis_url=url,
            queue=keys.queue,
            prefix=keys.prefix,
            model=NO_MODEL,
            max_batch_size=max_batch_size,
            lease_ms=LEASE_MS,
        )
        assembled = assemble(config, "cpu")
        self.streams: list[QueueStream] = []
        self.keys, self.url = keys, url
        self.read: list[Entry] = []
        self.ledger = Ledger(LEASE_MS / 1000.0, lambda added, _removed: self.read.extend(added))
        self._settler = _Held(self.connect(), self.ledger, assembled.hooks)
        self.context = Context(
            ledger=self.ledger,
            settler=self._settler,
            clock=ServerClock(),
            hooks=assembled.hooks,
            connect=self.connect,
            report_call=lambda _who, _begins: None,
        )
        self.intake = Intake(config, self.context, Engine(serve(assembled.served), self.context, threads=1))

    def connect(self, name: str = "me") -> QueueStream:
        self.streams.append(QueueStream(Wire(self.url), self.keys, name))
        return self.streams[-1]

    def step(self) -> None:
        self.intake._step()

    def settle(self, count: int) -> None:
        """The oldest ``count`` entries leave."""
        outcomes = []
        while not self._settler._queue.empty():
            outcomes += self._settler._queue.get() or []
        self._settler._settle(outcomes[:count])
        self._settler.put(outcomes[count:])


@pytest.fixture
def stepping(redis_server: RedisServer, keys: QueueKeys) -> Iterator[Callable[..., Steps]]:
    made: list[Steps] = []

    def make(max_batch_size: int, **options: Any) -> Steps:
        made.append(Steps(redis_server.url, keys, max_batch_size, **options))
        return made[-1]

    yield make
    for steps in made:
        for stream in steps.streams:
            stream.wire.close()


def echoes(count: int, name: str) -> list[Request]:
    return [Request(f"{name}{number}", "echo", {"data": number}) for number in range(count)]


def with_small_batches(served: Served) -> Served:
    """A second pipeline, for which one batch of two on each of two cores is worth it."""
    small = {variant: replace(program, at_once=4) for variant, program in served.programs["echo"].items()}
    return replace(
        served, programs={**served.programs, "small": small}, picks={**served.picks, "small": served.picks["echo"]}
    )
