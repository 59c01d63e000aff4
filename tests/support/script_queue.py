"""One queue driven by its scripts alone, for the tests of the scripts."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from clipfleet.schemas import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from clipfleet.schemas.keys import QueueKeys

LEASE_MS = 10_000


@dataclass(frozen=True)
class Admitted:
    accepted: int
    retry_after_ms: int
    now_ms: int
    answers: list[str]


class ScriptQueue:
    """The scripts of one queue as methods; everything else is plain Redis."""

    def __init__(self, client: redis.Redis, keys: QueueKeys) -> None:
        self.redis = client
        self.keys = keys
        self._calls = count(1)

    def run(self, name: str, keys: list[str], *args: Any) -> Any:
        return self.redis.eval(scripts.load(name).text, len(keys), *keys, *args)

    # ------------------------------------------------------------------ producer's side

    def admit_keys(self, call: str) -> list[str]:
        return [*self.keys.lanes, self.keys.fleet, self.keys.bytes, call]

    def admit_raw(self, *args: Any, call: int | None = None) -> Admitted:
        key = self.keys.call("p", next(self._calls) if call is None else call)
        accepted, retry_after, now, answers = self.run("admit", self.admit_keys(key), *args)
        return Admitted(accepted, retry_after, now, [answer.decode() for answer in answers])

    def admit(self, *sizes: int, lane: str = "interactive", ttl_ms: int = 60_000, call: int | None = None) -> Admitted:
        """One request for each of ``sizes``, with so many bytes of message."""
        triples = [part for i, size in enumerate(sizes) for part in (f"r{i}", ttl_ms, b"m" * size)]
        return self.admit_raw(lane, *triples, call=call)

    def limits(self, **fields: Any) -> None:
        self.redis.hset(self.keys.fleet, mapping=fields)

    # ------------------------------------------------------------------ worker's side

    def group(self) -> None:
        for lane in self.keys.lanes:
            self.redis.xgroup_create(lane, "workers", id="0", mkstream=True)

    def deliver(self, consumer: str = "w1", lane: int = 0, limit: int = 1_000) -> list[str]:
        key = self.keys.lanes[lane]
        answer = self.redis.xreadgroup("workers", consumer, {key: ">"}, count=limit)
        streams = answer.items() if isinstance(answer, dict) else answer
        return [stream_id.decode() for _, entries in streams for stream_id, _ in entries]

    def delivered(self, *sizes: int, consumer: str = "w1") -> list[str]:
        """Admitted and read by ``consumer``: their stream ids."""
        self.admit(*sizes)
        return self.deliver(consumer)

    def settle(
        self,
        stream_id: str,
        *,
        size: Any = 1,
        owner: str = "",
        result: bytes = b"result",
        reply_to: str | None = None,
        ttl_ms: Any = 5_000,
        dead: tuple[Any, ...] = (),
        lane: int = 0,
    ) -> int:
        first, other = self.keys.lanes[lane], self.keys.lanes[1 - lane]
        keys = [first, other, self.keys.bytes, reply_to or self.keys.result("a1"), self.keys.dead]
        return self.run("settle", keys, stream_id, size, owner, result, ttl_ms, *dead)

    def settle_many(self, *items: tuple[Any, ...], ttls: dict[str, Any] | None = None, lane: int = 0) -> list[int]:
        """Each of ``items`` is (stream id, size, reply_to, result); ``ttls`` by reply_to, 5,000 where it says none."""
        first, other = self.keys.lanes[lane], self.keys.lanes[1 - lane]
        targets = list(dict.fromkeys(reply_to for _, _, reply_to, _ in items))
        args = [(ttls or {}).get(one, 5_000) for one in targets]
        for stream_id, size, reply_to, result in items:
            args += [stream_id, size, targets.index(reply_to) + 1, result]
        return self.run("settle_many", [first, other, self.keys.bytes, *targets], *args)

    def reclaim(
        self, consumer: str = "w2", *, room: int = 64, solo: bool = True, cursor: str = "-", max_deliveries: int = 3
    ) -> tuple[str, int, list[tuple[str, int]]]:
        """Next cursor, suspects left, [(stream id, deliveries)]."""
        args = (consumer, LEASE_MS, room, max_deliveries, "1" if solo else "0", cursor)
        following, suspects, taken = self.run("reclaim", [self.keys.lanes[0]], *args)
        return following.decode(), suspects, [(stream_id.decode(), deliveries) for stream_id, _, deliveries in taken]

    def renew(self, consumer: str, *stream_ids: str) -> list[str]:
        return [each.decode() for each in self.run("renew", [self.keys.lanes[0]], consumer, *stream_ids)]

    def handback(self, consumer: str, *pairs: tuple[str, int]) -> int:
        flat = [part for pair in pairs for part in pair]
        return self.run("handback", [self.keys.lanes[0]], consumer, LEASE_MS, *flat)

    def leave(self, consumer: str) -> int:
        return self.run("leave", [*self.keys.lanes, self.keys.workers, self.keys.worker(consumer)], consumer)

    def heartbeat(self, name: str, *presence: Any, ttl_ms: int = 3_000) -> int:
        fields = presence or ("host", "here")
        return self.run("heartbeat", [self.keys.workers, self.keys.worker(name)], name, ttl_ms, *fields)

    def join(self, name: str, *, alive_ms: int = 5_000, force: bool = False, **fields: Any) -> list[str]:
        flat = [part for pair in fields.items() for part in pair]
        answer = self.run("join", [self.keys.fleet, self.keys.workers], name, alive_ms, "force" if force else "", *flat)
        return [part.decode() for part in answer]

    # ------------------------------------------------------------------ what Redis holds

    def age(self, stream_id: str, *, consumer: str = "w1", idle_ms: int = LEASE_MS, deliveries: int = 1) -> None:
        """Bring a delivered entry into the state that time and other workers would."""
        lane = self.keys.lanes[0]
        self.redis.xclaim(lane, "workers", consumer, 0, [stream_id], idle=idle_ms, retrycount=deliveries, justid=True)

    def pending(self, lane: int = 0) -> dict[str, tuple[str, int]]:
        """Stream id -> (consumer, deliveries)."""
        rows = self.redis.xpending_range(self.keys.lanes[lane], "workers", "-", "+", 10_000)
        return {row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows}

    def idle_ms(self, stream_id: str) -> int:
        rows = self.redis.xpending_range(self.keys.lanes[0], "workers", stream_id, stream_id, 1)
        return rows[0]["time_since_delivered"]

    def lengths(self) -> tuple[int, int]:
        interactive, bulk = self.keys.lanes
        return self.redis.xlen(interactive), self.redis.xlen(bulk)

    def bytes_held(self) -> int | None:
        held = self.redis.get(self.keys.bytes)
        return None if held is None else int(held)

    def snapshot(self) -> dict[bytes, bytes | None]:
        """Every key and what it holds; equal snapshots = nothing was written."""
        return {key: self.redis.dump(key) for key in self.redis.scan_iter("*")}

    @contextmanager
    def at_maxmemory(self) -> Iterator[None]:
        """Every command that may need memory is refused meanwhile."""
        self.redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.redis.config_set("maxmemory", 0)

    def drain(self) -> None:
        """Settle whatever a test left, so that the leak check sees what the scripts leave and nothing else."""
        for number, lane in enumerate(self.keys.lanes):
            if not self.redis.exists(lane):
                continue
            if not self.redis.xinfo_groups(lane):
                self.redis.xgroup_create(lane, "workers", id="0")
            while self.deliver("drain", number):
                pass
            for stream_id in self.pending(number):
                self.settle(stream_id, size=0, ttl_ms=0, lane=number)
        assert self.lengths() == (0, 0)
