"""Runs of ``index_corpus`` as the fleet's Redis keeps them, so that any Celery worker may go on with any shard.

``index:asked:<digest>``     string: the run that was last made for what was asked for; and, where the digest is of
                             that and of a Celery task's id, the run that this very task got
``index:<run>``              JSON: the plan, the Celery task ids that watch it, its state
``index:<run>:<n>``          JSON: one shard (``Shard``)
``index:<run>:<n>:done``     string: eight bytes for each item of the shard's current unit that is done
``index:runs``               set: the runs that are not finished

All live for a week after their last change. A run has a name of its own each time it is begun: a step or a message
that is left of the one before it, asked for in the same words, finds nothing that it could change.

A *step* is one Celery task, one message. Messages come twice: Celery delivers again what is not acknowledged. So a
shard has a **turn**: a message for an earlier turn is dropped. And it has a **lease**: a message for a turn that is
being run waits until the lease has ended; the lease is renewed while its process lives, so a killed one's ends within
``LEASE_MS``. Every write of a step checks that the lease is still its own: who was stopped for a while and comes back
changes nothing.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from clipfleet.cli.claims import claim, let_go
from clipfleet.tasks.eta import Pace
from clipfleet.tasks.failures import keep, page
from clipfleet.tasks.keys import RunKeys
from clipfleet.tasks.plan import digest
from clipfleet.tasks.state import RUNNING, Run, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import redis

    from clipfleet.schemas.keys import QueueKeys

__all__ = ["LEASE_MS", "Lost", "Runs"]

T = TypeVar("T")

LEASE_MS: Final = 10_000
TTL_S: Final = 7 * 24 * 3600
ID_BYTES: Final = 8


class Lost(Exception):
    """The shard is somebody else's by now, or its run has ended."""


class Runs:
    """All runs of a queue."""

    def __init__(self, client: redis.Redis, keys: QueueKeys) -> None:
        self._redis = client
        self._keys = RunKeys(keys)

    def now_ms(self) -> int:
        """By Redis, since hosts disagree."""
        seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def begin(self, asked: str, plan: dict[str, Any], task: str) -> tuple[str, Run, bool]:
        """(name, run, whether it is new) for what was asked for: what is under way gets one more watcher.

        Args:
            asked: digest of what makes two calls the same.
            plan: for a new run.
            task: Celery id of the caller. Its message may come twice, also when what it asked for has been begun anew
                since: then it gets what it got.
        """
        now = self.now_ms()

        def attempt(pipe: redis.client.Pipeline) -> tuple[str, Run, bool]:
            found = self._find(asked, task, pipe, pipe.watch)
            pipe.multi()
            if found is None:
                made = Run(plan, [task], now, asked=asked)
                return self._make(pipe, made), made, True
            run, known = found
            if task not in known.tasks:
                known.tasks.append(task)
            pipe.set(self._own(asked, task), run, ex=TTL_S)
            self._put(pipe, self._keys.run(run), known)
            return run, known, False

        return self._transaction(self._keys.asked(asked), attempt)

    def is_claimed(self, run: str, collection: str) -> bool:
        """Whether ``clipfleet index --reindex`` is at a new collection; else it is kept for this run from then on."""
        return bool(claim(self._redis, self._keys.queue, collection, by=run, about=f"the Celery run {run}"))

    def find(self, asked: str, task: str) -> tuple[str, Run] | None:
        """What ``begin`` would join; None where it would make a new run."""
        return self._find(asked, task, self._redis, lambda *_keys: None)

    def _find(self, asked: str, task: str, client: redis.Redis, watch: Callable[..., object]) -> tuple[str, Run] | None:
        own = self._own(asked, task)
        for place in (own, self._keys.asked(asked)):
            watch(place)
            run = cast("bytes", client.get(place) or b"").decode()
            watch(self._keys.run(run))
            raw = cast("bytes | None", client.get(self._keys.run(run)))
            known = Run(**json.loads(raw)) if raw else None
            if known is not None and (place == own or known.state == RUNNING or task in known.tasks):
                return run, known
        return None

    def _own(self, asked: str, task: str) -> str:
        return self._keys.asked(digest([asked, task]))

    def _make(self, pipe: redis.client.Pipeline, made: Run) -> str:
        run = secrets.token_hex(10)
        for pointer in self._pointers(made):
            pipe.set(pointer, run, ex=TTL_S)
        self._put(pipe, self._keys.run(run), made)
        pipe.sadd(self._keys.all, run)
        pipe.expire(self._keys.all, TTL_S)
        for number in range(made.plan["shards"]):
            self._put(pipe, self._keys.shard(run, number), Shard(moved_ms=made.began_ms, asked_ms=made.began_ms))
        return run

    def _pointers(self, known: Run) -> list[str]:
        return [self._keys.asked(known.asked), *(self._own(known.asked, task) for task in known.tasks)]

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

        has_ended = self._change(self._keys.run(run), change)
        if has_ended and (known := self.get(run)) is not None and known.plan.get("alias"):
            let_go(self._redis, self._keys.queue, known.plan["collection"], by=run)
        return has_ended

    def close(self, run: str, owner: str) -> tuple[Run | None, int]:
        """(the run, 0) for the one who may switch its alias now; (None, ms) when another one does for so long yet.

        A run that has ended is anybody's to look at: (the run, 0).
        """
        now = self.now_ms()

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> tuple[Run | None, int]:
            known = Run(**json.loads(raw)) if raw else None
            if known is not None and known.state == RUNNING:
                if known.closer not in ("", owner) and known.closing_ms > now:
                    return None, known.closing_ms - now
                known.closer, known.closing_ms = owner, now + LEASE_MS
                self._put(pipe, self._keys.run(run), known)
            return known, 0

        return self._change(self._keys.run(run), change)

    def leave(self, run: str, owner: str) -> None:
        """Whoever was to switch the alias could not: another one may try at once."""

        def change(raw: bytes | None, pipe: redis.client.Pipeline) -> None:
            known = Run(**json.loads(raw)) if raw else None
            if known is not None and known.closer == owner:
                known.closer, known.closing_ms = "", 0
                self._put(pipe, self._keys.run(run), known)

        self._change(self._keys.run(run), change)

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

        known = self.get(run)
        if known is not None and known.state == RUNNING:
            # A run may take weeks, and nobody writes these meanwhile.
            for key in (self._keys.run(run), *self._pointers(known)):
                self._redis.expire(key, TTL_S)
            return self._change(self._keys.shard(run, number), change)
        return False

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

        return self._transaction(key, attempt)

    def _transaction(self, key: str, attempt: Callable[[redis.client.Pipeline], T]) -> T:
        # Its types know nothing of value_from_callable.
        return cast("T", self._redis.transaction(attempt, key, value_from_callable=True))  # type: ignore[arg-type]
