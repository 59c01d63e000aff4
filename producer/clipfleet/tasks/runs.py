"""Runs of ``index_corpus`` as the fleet's Redis keeps them, so that any Celery worker may go on with any shard.

``index:<run>``              JSON: the plan, the Celery task ids that watch it, its state
``index:<run>:<n>``          JSON: one shard (``Shard``)
``index:<run>:<n>:done``     string: eight bytes for each item of the shard's current unit that is done
``index:runs``               set: the runs that are not finished

All live for a week after their last change.

A *step* is one Celery task, one message. Messages come twice: Celery delivers again what is not acknowledged. So a
shard has a **turn**: a message for an earlier turn is dropped. And it has a **lease**: a message for a turn that is
being run waits until the lease has ended; the lease is renewed while its process lives, so a killed one's ends within
``LEASE_MS``. Every write of a step checks that the lease is still its own: who was stopped for a while and comes back
changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from clipfleet.tasks.eta import Pace
from clipfleet.tasks.failures import keep, page
from clipfleet.tasks.keys import RunKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import redis

    from clipfleet.schemas.keys import QueueKeys

__all__ = ["FINISHED", "LEASE_MS", "REVOKED", "RUNNING", "Lost", "Run", "Runs", "Shard", "totals"]

T = TypeVar("T")

LEASE_MS: Final = 10_000
TTL_S: Final = 7 * 24 * 3600
ID_BYTES: Final = 8
RUNNING: Final = "running"
FINISHED: Final = "finished"
REVOKED: Final = "revoked"


class Lost(Exception):
    """The shard is somebody else's by now, or its run has ended."""


@dataclass(slots=True)
class Run:
    """One corpus on its way.

    Attributes:
        plan: ``Plan`` as JSON.
        tasks: Celery ids of the ``index_corpus`` tasks that asked for it and show its progress.
        began_ms: when, unix ms by Redis.
        state: ``running``, ``finished``, ``revoked``.
        ended_ms: when it ended; 0 before.
        switched: what became of its alias.
    """

    plan: dict[str, Any]
    tasks: list[str]
    began_ms: int
    state: str = RUNNING
    ended_ms: int = 0
    switched: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Shard:
    """One shard.

    Attributes:
        turn: the step that is to be run, or runs.
        owner: who runs it; empty = nobody.
        until_ms: when its lease ends.
        asked_ms: when a message for it was last sent.
        unit: how many of its units are finished.
        indexed: rows that Milvus acknowledged.
        failed: failures by code.
        skipped: files without a picture's suffix.
        duplicates: pictures met once more.
        failures: the first of them: id, label, code, message.
        moved_ms: when something was last done.
        stalls: steps in a row in which nothing was.
        ended: why it does nothing more: ``done``, or an error; empty while it goes on.
    """

    turn: int = 0
    owner: str = ""
    until_ms: int = 0
    asked_ms: int = 0
    unit: int = 0
    indexed: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    duplicates: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    moved_ms: int = 0
    stalls: int = 0
    ended: str = ""


class Runs:
    """All runs of a queue."""

    def __init__(self, client: redis.Redis, keys: QueueKeys) -> None:
        self._redis = client
        self._keys = RunKeys(keys)

    def now_ms(self) -> int:
        """By Redis, since hosts disagree."""
        seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def begin(self, run: str, plan: dict[str, Any], task: str) -> tuple[Run, bool]:
        """The run, and whether it is new: one that is under way gets one more watcher."""
        now = self.now_ms()

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> tuple[Run, bool]:
            known = Run(**json.loads(raw)) if raw else None
            if known is not None and (known.state == RUNNING or task in known.tasks):
                if task not in known.tasks:
                    known.tasks.append(task)
                self._put(pipe, self._keys.run(run), known)
                return known, False
            made = Run(plan, [task], now)
            self._put(pipe, self._keys.run(run), made)
            pipe.sadd(self._keys.all, run)
            pipe.expire(self._keys.all, TTL_S)
            for number in range(plan["shards"]):
                self._put(pipe, self._keys.shard(run, number), Shard(moved_ms=now, asked_ms=now))
                pipe.delete(self._keys.done(run, number))
            return made, True

        return self._change(self._keys.run(run), change)

    def get(self, run: str) -> Run | None:
        """A run; None for one that is not known (any more)."""
        raw = self._redis.get(self._keys.run(run))
        return Run(**json.loads(raw)) if raw else None

    def shards(self, run: str, count: int) -> list[Shard]:
        """All shards of a run."""
        raws = self._redis.mget([self._keys.shard(run, number) for number in range(count)])
        return [Shard(**json.loads(raw)) if raw else Shard(ended="gone") for raw in raws]

    def unfinished(self) -> list[str]:
        """The runs that are under way."""
        return sorted(cast("bytes", raw).decode() for raw in self._redis.smembers(self._keys.all))

    def end(self, run: str, state: str, switched: dict[str, Any] | None = None) -> bool:
        """End a run that is under way; false when it has ended already."""
        now = self.now_ms()

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> bool:
            known = Run(**json.loads(raw)) if raw else None
            pipe.srem(self._keys.all, run)
            if known is None or known.state != RUNNING:
                return False
            known.state, known.ended_ms, known.switched = state, now, switched or {}
            self._put(pipe, self._keys.run(run), known)
            return True

        return self._change(self._keys.run(run), change)

    def is_running(self, run: str) -> bool:
        """Whether it has neither finished nor been revoked."""
        known = self.get(run)
        return known is not None and known.state == RUNNING

    def claim(self, run: str, number: int, turn: int, owner: str) -> tuple[Shard | None, int]:
        """(the shard, 0) for its new owner; (None, ms) when somebody runs it for so long yet; (None, 0) = drop it."""
        now = self.now_ms()

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> tuple[Shard | None, int]:
            shard = Shard(**json.loads(raw)) if raw else None
            if shard is None or shard.ended or turn < shard.turn:
                return None, 0
            # Whoever ran the turn before this one sent this message as its last act.
            if turn == shard.turn and shard.until_ms > now and shard.owner != owner:
                return None, shard.until_ms - now
            shard.turn, shard.owner, shard.until_ms = turn, owner, now + LEASE_MS
            self._put(pipe, self._keys.shard(run, number), shard)
            return shard, 0

        return self._change(self._keys.shard(run, number), change)

    def save(
        self,
        run: str,
        number: int,
        shard: Shard,
        done: Iterable[bytes] = (),
        *,
        failures: Iterable[Mapping[str, str]] = (),
        next_unit: bool = False,
    ) -> None:
        """Keep what a step has done: the counts and what they count, at once.

        Raises:
            Lost: it is not its owner any more; nothing was changed.
        """
        now = self.now_ms()
        key, log = self._keys.shard(run, number), self._keys.done(run, number)

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> None:
            kept = Shard(**json.loads(raw)) if raw else None
            if kept is None or kept.owner != shard.owner or kept.turn > shard.turn:
                raise Lost
            shard.until_ms = now + LEASE_MS if shard.owner else 0
            self._put(pipe, key, shard)
            pipe.expire(self._keys.all, TTL_S)
            keep(pipe, self._keys.failures(run, number), failures, TTL_S)
            if next_unit:
                pipe.delete(log)
            elif ids := b"".join(done):
                pipe.append(log, ids)
                pipe.expire(log, TTL_S)

        self._change(key, change)

    def renew(self, run: str, number: int, owner: str) -> bool:
        """Keep the lease; false when there is nothing to keep: it was lost, or the run has ended."""
        now = self.now_ms()

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> bool:
            shard = Shard(**json.loads(raw)) if raw else None
            if shard is None or shard.owner != owner:
                return False
            shard.until_ms = now + LEASE_MS
            self._put(pipe, self._keys.shard(run, number), shard)
            return True

        return self._change(self._keys.shard(run, number), change) and self.is_running(run)

    def release(self, run: str, number: int, owner: str, *, turn: int, ended: str = "") -> None:
        """Give the shard back; ``turn`` is the step that comes next, for which a message is on its way."""
        now = self.now_ms()

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> None:
            shard = Shard(**json.loads(raw)) if raw else None
            if shard is not None and shard.owner == owner:
                shard.owner, shard.until_ms, shard.turn, shard.asked_ms, shard.ended = "", 0, turn, now, ended
                self._put(pipe, self._keys.shard(run, number), shard)

        self._change(self._keys.shard(run, number), change)

    def ask_again(self, run: str, number: int, quiet_ms: int) -> tuple[int, int] | None:
        """(turn, ms to wait) for a shard that is neither run nor asked for since ``quiet_ms``; None for the others.

        With minus ``LEASE_MS`` it is every shard that goes on: whoever seems to run it may have been killed just now.
        """
        now = self.now_ms()

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> tuple[int, int] | None:
            shard = Shard(**json.loads(raw)) if raw else None
            if shard is None or shard.ended or now - max(shard.asked_ms, shard.until_ms) < quiet_ms:
                return None
            shard.asked_ms = now
            self._put(pipe, self._keys.shard(run, number), shard)
            return shard.turn, max(0, shard.until_ms - now)

        return self._change(self._keys.shard(run, number), change)

    def failures(self, run: str, after: list[int], limit: int) -> tuple[list[dict[str, str]], list[int], int]:
        """A page of a run's failures; see ``failures.page``."""
        return page(self._redis, self._keys, run, after, limit)

    def pace(self, run: str) -> Pace:
        """How fast a run goes."""
        return Pace(self._redis, self._keys, run)

    def done(self, run: str, number: int) -> set[bytes]:
        """What is done of the shard's current unit: eight bytes for each."""
        raw = cast("bytes", self._redis.get(self._keys.done(run, number)) or b"")
        return {raw[at : at + ID_BYTES] for at in range(0, len(raw), ID_BYTES)}

    def _put(self, pipe: redis.client.Pipeline, key: str, value: Run | Shard) -> None:
        pipe.set(key, json.dumps(asdict(value)), ex=TTL_S)

    def _change(self, key: str, change: Callable[[bytes | None, redis.client.Pipeline], T]) -> T:
        """Read one key, decide, write: all or nothing, and again when somebody else wrote in between."""

        def attempt(pipe: redis.client.Pipeline) -> T:
            raw = cast("bytes | None", pipe.get(key))
            pipe.multi()
            return change(raw, pipe)

        # Its types know nothing of value_from_callable.
        return cast("T", self._redis.transaction(attempt, key, value_from_callable=True))  # type: ignore[arg-type]


def totals(shards: Iterable[Shard]) -> dict[str, Any]:
    """What all shards have done together."""
    shards = list(shards)
    failed: Counter[str] = Counter()
    for shard in shards:
        failed.update(shard.failed)
    return {
        "indexed": sum(shard.indexed for shard in shards),
        "failed": dict(failed),
        "skipped": sum(shard.skipped for shard in shards),
        "duplicates": sum(shard.duplicates for shard in shards),
        "shards": len(shards),
        "shards_done": sum(bool(shard.ended) for shard in shards),
    }
