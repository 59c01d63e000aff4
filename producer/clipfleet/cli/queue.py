"""What the operator sees of a queue: lanes, fleet, workers, dead letters. Reads Redis itself; changes dead letters.

It and ``claims`` are the only modules of the command line that speak Redis.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from clipfleet.cli.claims import claim, let_go
from clipfleet.cli.errors import CliError
from clipfleet.cli.keys import claim_key
from clipfleet.schemas.errors import ErrorCode, Unavailable
from clipfleet.schemas.keys import Lane, QueueKeys
from clipfleet.schemas.limits import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DeadLetter", "LaneState", "QueueView", "Snapshot", "WorkerState"]

ALIVE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class LaneState:
    """One lane.

    Attributes:
        lane: its name.
        total: entries waiting and in flight.
        in_flight: those that a worker holds.
        oldest_s: age of its oldest entry, seconds; None when empty.
    """

    lane: str
    total: int
    in_flight: int
    oldest_s: float | None

    @property
    def waiting(self) -> int:
        """Entries that no worker has taken yet."""
        return max(0, self.total - self.in_flight)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker process.

    Attributes:
        name: its name.
        age_s: seconds since its last heartbeat.
        presence: its hash: host, pid, device, provider, rates, version.
    """

    name: str
    age_s: float
    presence: dict[str, str]

    @property
    def alive(self) -> bool:
        """Whether it was heard of lately."""
        return self.age_s * 1000 < ALIVE_MS and bool(self.presence)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment.

    Attributes:
        lanes: interactive, then bulk.
        fleet: what the workers agreed on; empty before the first one.
        workers: the living first, then those that went silent.
        dead: number of dead letters.
        bytes: payload bytes queued.
    """

    lanes: list[LaneState]
    fleet: dict[str, str]
    workers: list[WorkerState]
    dead: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter.

    Attributes:
        entry: its id in the stream of dead letters.
        fields: as the worker wrote them: ``id, request, code, message, deliveries, lane, enqueued_ms``.
        request: the raw request, msgpack.
    """

    entry: str
    fields: dict[str, str]
    request: bytes = field(repr=False)


class QueueView:
    """A queue as its operator sees it.

    Every method raises ``Unavailable`` when Redis does not answer, and ``CliError`` when it refuses.
    """

    def __init__(self, client: redis.Redis, keys: QueueKeys) -> None:
        self._redis = client
        self._keys = keys

    @classmethod
    @contextmanager
    def open(cls, url: str, queue: str, prefix: str, *, timeout_s: float = 5.0) -> Iterator[QueueView]:
        """A view over a connection of its own, closed at the end."""
        client = redis.Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )
        try:
            yield cls(client, QueueKeys(queue, prefix))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise Unavailable(ErrorCode.UNAVAILABLE, f"Redis does not answer: {error}") from None
        except redis.ResponseError as error:
            raise CliError(f"Redis refuses: {error}", hint="Look at the user and password in --redis-url.") from None
        finally:
            client.close()

    def server(self) -> dict[str, Any]:
        """``INFO``, with ``maxmemory_policy`` in it."""
        info: dict[str, Any] = self._redis.info()
        return info

    def living_workers(self) -> list[str]:
        """Names of the workers heard of within the last 10 s whose presence is there."""
        return [worker.name for worker in self._workers(self._now_ms()) if worker.alive]

    def heard_workers(self) -> list[str]:
        """Names of the workers heard of within the last 10 s, by what any producer may read."""
        now_ms = self._now_ms()
        return [name.decode() for name, score in self._heard() if now_ms - score < ALIVE_MS]

    def model(self) -> tuple[str, int]:
        """Fingerprint and dimension of the queue's model; empty and 0 before its first worker, or where it has none."""
        # HMGET is among a producer's rights, HGETALL is not.
        found: Any = self._redis.hmget(self._keys.fleet, ["fingerprint", "dimension"])
        return (found[0] or b"").decode(), int(found[1] or 0)

    def claim(self, collection: str, *, by: str, about: str) -> str | None:
        """Claim a new collection for one run; see ``claims.claim``."""
        return claim(self._redis, self._keys, collection, by=by, about=about)

    def claim_key(self, collection: str) -> str:
        """The key of that claim."""
        return claim_key(self._keys, collection)

    def let_go(self, collection: str, *, by: str) -> None:
        """End that claim."""
        let_go(self._redis, self._keys, collection, by=by)

    def snapshot(self) -> Snapshot:
        """All of it, now."""
        now = self._now_ms()
        keys = self._keys
        return Snapshot(
            lanes=[self._lane(lane, now) for lane in Lane],
            fleet=_text(self._redis.hgetall(keys.fleet)),
            workers=self._workers(now),
            dead=int(self._redis.xlen(keys.dead)),
            bytes=int(self._redis.get(keys.bytes) or 0),
        )

    def dead_letters(self) -> Iterator[DeadLetter]:
        """The dead letters, oldest first, read page by page."""
        start = "-"
        while True:
            page: Any = self._redis.xrange(self._keys.dead, min=start, count=100)
            for entry, fields in page:
                request = fields.pop(b"request", b"")
                yield DeadLetter(entry.decode(), _text(fields), request)
            if len(page) < 100:
                return
            start = f"({page[-1][0].decode()}"

    def drop(self, entries: list[str]) -> int:
        """Remove dead letters; how many were there."""
        return int(self._redis.xdel(self._keys.dead, *entries)) if entries else 0

    def _now_ms(self) -> int:
        seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def _lane(self, lane: Lane, now_ms: int) -> LaneState:
        key = self._keys.lane(lane)
        first: Any = self._redis.xrange(key, count=1)
        oldest = (now_ms - int(first[0][0].partition(b"-")[0])) / 1000 if first else None
        try:
            pending: dict[str, Any] = self._redis.xpending(key, GROUP)
            in_flight = int(pending["pending"])
        except redis.ResponseError:  # no group yet: no worker was ever here
            in_flight = 0
        return LaneState(str(lane), int(self._redis.xlen(key)), in_flight, oldest)

    def _workers(self, now_ms: int) -> list[WorkerState]:
        return [
            WorkerState(
                name.decode(), (now_ms - score) / 1000, _text(self._redis.hgetall(self._keys.worker(name.decode())))
            )
            for name, score in self._heard()
        ]

    def _heard(self) -> list[Any]:
        found: list[Any] = self._redis.zrevrange(self._keys.workers, 0, -1, withscores=True)
        return found


def _text(raw: dict[Any, Any]) -> dict[str, str]:
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in raw.items()}
