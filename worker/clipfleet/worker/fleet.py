"""What a supervisor says to and for the fleet: joining, leases, presence, and tidying up after the dead."""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, AuthorizationError, ResponseError

from clipfleet.schemas.errors import ClipfleetError
from clipfleet.schemas.keys import NAME
from clipfleet.schemas.limits import HANDBACK_CONSUMER
from clipfleet.schemas.scripts import load
from clipfleet.worker.capability import Capability
from clipfleet.worker.connection import LOST
from clipfleet.worker.patience import Patience
from clipfleet.worker.stream import QueueStream, is_out_of_memory
from clipfleet.worker.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clipfleet.worker.child import Child
    from clipfleet.worker.config import WorkerConfig

__all__ = ["ALIVE_MS", "Fleet", "FleetRefused"]

log = logging.getLogger(__name__)

PRESENCE_TTL_MS = 5_000
ALIVE_MS = 5_000
TIDY_EVERY_S = 30.0
# What a dead process asked for last may still lie in a socket of Redis, or be under way, when its name is struck off; a
# read that is blocked is served until Redis has seen that its connection is closed.
ECHO_S = 5.0
FORGOTTEN_MS = 60_000  # a consumer without work that nobody has heard of for so long is nobody's
OLDEST_SERVER = (6, 2)
HIGHEST_RATE = 1e9  # of one worker, per second


class FleetRefused(ClipfleetError):
    """The worker cannot join: the text says what differs and what to do."""


class Fleet:
    """The supervisor's side of the queue, over one connection with a short timeout.

    Args:
        config: the worker's.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        # Shorter than a third of the lease: a renewal that hangs must leave time for another.
        self._wire = Wire(config.redis_url, timeout_s=min(2.0, config.lease_ms / 4000.0))
        self.patience = Patience("speaking for the workers")
        self._capabilities: defaultdict[str, Capability] = defaultdict(Capability)
        self._tidy_at = time.monotonic() + TIDY_EVERY_S
        self._dead: dict[str, float] = {}  # by name: until when (monotonic, s) it may be heard of

    def check_server(self) -> None:
        """Refuse a server that would lose requests, or that lacks what we use.

        Raises:
            LOST: it cannot be asked now.
            FleetRefused: too old, it evicts keys when it is full, it does not let us in, or its certificate is not one
                that we trust: waiting would only hide that.
        """
        try:
            info = self._info()
        except (AuthenticationError, AuthorizationError, ResponseError) as error:
            raise FleetRefused(f"Redis refuses this worker: {error}") from error
        except LOST as error:
            if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
                raise FleetRefused(f"Redis is not trusted: {error}") from error
            raise
        release = info.get("redis_version", "0")
        if tuple(int(part) for part in release.split(".")[:2]) < OLDEST_SERVER:
            raise FleetRefused(f"Redis {release} is too old: 6.2 or newer (or Valkey) is needed")
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise FleetRefused(
                f"Redis has maxmemory-policy {policy}: it would drop requests and results when it is full. "
                "Set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)"
            )

    def _info(self) -> dict[str, str]:
        parts = [self._wire.command("INFO", part) for part in ("server", "memory")]
        lines = b"\n".join(parts).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def join(self, child: Child) -> None:
        """Agree with the fleet on limits and fingerprint, as its first worker or like the others.

        Raises:
            FleetRefused: something differs from what a living fleet agreed on.
        """
        config, keys = self._config, self._config.keys
        agreed = config.agreed(child.facts["fingerprint"], child.facts["dimension"])
        flat = [part for pair in agreed.items() for part in pair]
        mode = "force" if config.set_limits or config.replace else ""
        try:
            differs = self._wire.call("join", [keys.fleet, keys.workers], [child.name, ALIVE_MS, mode, *flat])
        except ResponseError as error:
            if not is_out_of_memory(error):
                raise
            # A full Redis must drain: work under the limits that are there, and join when it has room again.
            log.warning("Redis is full; joining without writing: %s", error)
            differs = []
        if differs:
            triples = [[_text(part) for part in differs[i : i + 3]] for i in range(0, len(differs), 3)]
            text = ", ".join(f"{name} is {theirs!r} there and {ours!r} here" for name, theirs, ours in triples)
            raise FleetRefused(
                f"queue {config.queue!r} is served by a fleet that differs: {text}. Start with the same settings, "
                "use another --queue, or write yours over them with --set and start its other workers again with the "
                "same, since until then each serves what it was started with; --replace takes the queue over"
            )

    def renew(self, consumer: str, held: Mapping[str, Sequence[str]]) -> set[tuple[str, str]]:
        """Lengthen leases; returns lane and stream id of what is the consumer's no longer."""
        return self._stream(consumer).renew(held)

    def release(self, consumer: str) -> None:
        """Give back what a dead process held, and remove its name; ``strike_off`` does so again for a while."""
        self._capabilities.pop(consumer, None)
        self._dead[consumer] = time.monotonic() + ECHO_S
        self._strike_off(consumer)

    def strike_off(self) -> None:
        """Do so again for those that have not been dead for long: the last of their reads may have come since."""
        now = time.monotonic()
        for consumer, until in list(self._dead.items()):
            self._strike_off(consumer)
            if now >= until:
                del self._dead[consumer]

    def _strike_off(self, consumer: str) -> None:
        """What it held is what Redis says: of its last read nobody may have heard.

        Delivery counts stay as they are: one of these requests may be what killed it, as soon as it was decoded.
        """
        stream = self._stream(consumer)
        for lane in self._config.keys.lanes:
            try:
                mine = stream.mine(lane)
            except ResponseError:
                continue  # there is no such lane or group any more, so nothing is held in it
            stream.hand_back(lane, mine.items(), idle_ms=self._config.lease_ms)
        stream.leave(consumer)

    def heartbeat(self, children: Sequence[Child]) -> None:
        """Say that these live, with their figures, and tidy up after those who do not."""
        keys = self._config.keys
        for child in children:
            presence = {**child.facts, **self._figures(child)}
            flat = [part for pair in presence.items() for part in pair]
            self._wire.call("heartbeat", [keys.workers, keys.worker(child.name)], [child.name, PRESENCE_TTL_MS, *flat])
        if children:
            self._survey(children)
            self._offer_admission()
            if not self._wire.command("EXISTS", keys.fleet):
                for child in children:
                    self.join(child)
            if time.monotonic() >= self._tidy_at:
                self._tidy_at = time.monotonic() + TIDY_EVERY_S
                self._tidy({child.name for child in children})
        self.strike_off()

    def _figures(self, child: Child) -> dict[str, Any]:
        stats = child.stats
        rate = self._capabilities[child.name].observe(stats) if stats else 0.0
        stages = stats.get("stages", {})
        items = sum(stage["items"] for stage in stages.values())
        batches = sum(stage["batches"] for stage in stages.values())
        return {
            "rate": round(rate, 3),
            "settled": stats.get("settled", 0),
            "failed": stats.get("failed", 0),
            "held": stats.get("held", 0),
            "items": items,
            "batches": batches,
            "mean_batch": round(items / batches, 3) if batches else 0,
            "costs": json.dumps({name: stage["cost_ms"] for name, stage in stages.items() if stage["cost_ms"]}),
        }

    def _survey(self, children: Sequence[Child]) -> None:
        """Look at all living workers: say what the fleet can do, and tell ours whether another is idle.

        What it can do is the sum over them, for ``retry_after``, whoever writes it last.
        """
        keys = self._config.keys
        seconds, _ = self._wire.command("TIME")
        living = self._wire.command("ZRANGEBYSCORE", keys.workers, int(seconds) * 1000 - ALIVE_MS, "+inf")
        # Whoever may write to this Redis may have put any name and any rate there.
        names = [name for name in map(_text, living) if NAME.match(name)]
        # (Not HMGET: users of a Redis with rights of their own were given HGET.)
        told = self._wire.batch([("HGET", keys.worker(name), what) for name in names for what in ("rate", "held")])
        told = [None if isinstance(one, Exception) else one for one in told]
        figures = dict(zip(names, zip(told[::2], told[1::2], strict=True), strict=True))
        idle = {name for name, (_, held) in figures.items() if held == b"0"}
        for child in children:
            child.hear_of_idle(bool(idle - {child.name}))
        total = sum(_rate(rate) for rate, _ in figures.values())
        if total > 0:
            self._wire.command("HSET", keys.fleet, "rate", round(total, 3))

    def _offer_admission(self) -> None:
        """Keep ``admit`` loaded: a producer's ACL may let it run scripts that are there, and load none."""
        admit = load("admit")
        if not self._wire.command("SCRIPT", "EXISTS", admit.sha)[0]:
            self._wire.command("SCRIPT", "LOAD", admit.text)

    def _tidy(self, ours: set[str]) -> None:
        """Remove consumers that hold nothing and whose process is long gone (its machine died)."""
        stream = self._stream("")
        for consumer in stream.idle_consumers(FORGOTTEN_MS) - ours - {HANDBACK_CONSUMER}:
            if not self._wire.command("EXISTS", self._config.keys.worker(consumer)):
                stream.leave(consumer)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def _stream(self, consumer: str) -> QueueStream:
        return QueueStream(self._wire, self._config.keys, consumer)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _rate(reply: Any) -> float:
    try:
        rate = float(reply)
    except (TypeError, ValueError):  # none, an error, or no number
        return 0.0
    return rate if 0.0 <= rate < HIGHEST_RATE else 0.0
