"""What the tests of faults ask of a queue: who holds what, and whether all came to rest."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from clipfleet.schemas.limits import GROUP, HANDBACK_CONSUMER
from clipfleet.schemas.request import Request
from clipfleet.schemas.result import Result, decode_result
from support.fleet import results
from support.leaks import find_leaks
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess

# Short, so that tests that wait for leases do not wait for long; the rules are the same at 10 s.
LEASE_MS = 2_000


def picture(seed: int) -> bytes:
    """A PNG that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def texts(count: int, start: str = "r") -> list[Request]:
    return [Request(f"{start}{i}", "embed_text", {"text": f"a picture of thing number {i}"}) for i in range(count)]


def echoes(count: int, start: str = "e") -> list[Request]:
    return [Request(f"{start}{i}", "echo", {"data": i}) for i in range(count)]


def pictures(count: int, collection: str, start: str = "p") -> list[Request]:
    """Pictures to be indexed, each under its request's id."""
    return [
        Request(
            f"{start}{i}",
            "index_image",
            {"image": picture(i), "id": f"{start}{i}", "collection": collection, "metadata": {"n": i}},
        )
        for i in range(count)
    ]


def ids(requests: Iterable[Request]) -> list[str]:
    return [one.id for one in requests]


def answers(
    client: redis.Redis, keys: QueueKeys, requests: Sequence[Request], timeout: float = 30.0
) -> dict[str, Result]:
    """Each request's one result; AssertionError for a second one, or one under another's key."""
    found = results(client, keys, ids(requests), timeout)
    assert {len(entries) for entries in found.values()} == {1}
    decoded = {one: decode_result(entries[0]) for one, entries in found.items()}
    assert [result.id for result in decoded.values()] == list(decoded)
    return decoded


def pending(client: redis.Redis, keys: QueueKeys) -> dict[str, tuple[str, int]]:
    """Stream id -> (consumer, deliveries), over both lanes."""
    return {
        row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"])
        for lane in keys.lanes
        if client.exists(lane)
        for row in client.xpending_range(lane, GROUP, "-", "+", 20_000)
    }


def owners(client: redis.Redis, keys: QueueKeys) -> set[str]:
    return {consumer for consumer, _ in pending(client, keys).values()}


def consumers(client: redis.Redis, keys: QueueKeys) -> set[str]:
    """Names in the group, the one for work handed back aside."""
    # A worker that has only just started may not have made its lanes yet.
    lanes = [lane for lane in keys.lanes if client.exists(lane)]
    found = {info["name"].decode() for lane in lanes for info in client.xinfo_consumers(lane, GROUP)}
    return found - {HANDBACK_CONSUMER}


def held(worker: WorkerProcess) -> int:
    """How many requests its processes say that they hold; -1 while one has said nothing yet."""
    said = [one.get("held") for one in worker.presence()]
    return sum(int(one) for one in said if one is not None) if None not in said else -1


def all_let_go(worker: WorkerProcess, timeout: float = 20.0) -> None:
    """Wait until the worker holds nothing and said so: whatever it does late has happened by then."""
    wait_until(lambda: held(worker) == 0, timeout, f"nothing held by {worker.names}")


def at_rest(
    client: redis.Redis,
    keys: QueueKeys,
    workers: Sequence[WorkerProcess] = (),
    timeout: float = 15.0,
    dead: AbstractSet[str] = frozenset(),
) -> None:
    """Nothing queued, pending, counted or leaked; in the group the living ``workers`` and nobody else.

    ``dead``: names whose supervisor was killed with them; others strike them off after a minute.
    """

    def troubles() -> list[str]:
        living = {name for worker in workers for name in worker.names}
        strangers = consumers(client, keys) - living - dead
        return find_leaks(client) + [f"a consumer of nobody: {name}" for name in sorted(strangers)]

    try:
        wait_until(lambda: not troubles(), timeout)
    except AssertionError:
        raise AssertionError("not at rest:\n" + "\n".join(troubles())) from None
