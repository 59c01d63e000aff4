"""Point 1: a worker killed or stopped at each named point; exactly one result, one row, within three leases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from chaos.checks import all_let_go, answers, at_rest, held, ids, owners, pending, pictures
from clipfleet.store import Store, StoreConfig
from support.fleet import admit
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from clipfleet.store.lite import LiteServer
    from support.fleet import WorkerProcess

pytestmark = pytest.mark.chaos
LEASE_MS = 4_000  # long enough for a laptop with other things to do


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("point", ["prepare", "call", "stored", "settle"])
def test_whatever_happens_at_a_point_there_is_one_result_and_one_row(
    redis_client: redis.Redis,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    lite: LiteServer,
    collection: str,
    point: str,
    fault: str,
) -> None:
    # Given pictures to be indexed, and a worker that stands with them at the point
    settings = {"lease_ms": LEASE_MS, "milvus_uri": lite.uri, "max_delay_ms": 100}
    first = start_worker(hooks="support.hooks:Barrier", **settings)
    first.hold(point)
    requests = pictures(4, collection)
    assert admit(redis_client, keys, requests)[0] == 4
    first.reached(point)
    wait_until(lambda: held(first) == 4, 10, "the worker to say what it holds")
    # they are its own, delivered once, and nobody has an answer
    assert set(pending(redis_client, keys).values()) == {(first.names[0], 1)}
    assert not any(redis_client.exists(keys.result(one)) for one in ids(requests))
    second = start_worker(**settings)
    assert owners(redis_client, keys) == {first.names[0]}
    # When it is killed or stopped there
    child = first.child()
    first.unhold(point)
    since = time.monotonic()
    child.kill() if fault == "SIGKILL" else child.suspend()
    # Then all are answered elsewhere, within three leases
    found = answers(redis_client, keys, requests)
    assert time.monotonic() - since < 3 * LEASE_MS / 1000
    assert all(result.ok for result in found.values())
    before = {one: redis_client.lrange(keys.result(one), 0, -1) for one in found}
    # and when the stopped one goes on, whatever it still does changes nothing
    if fault == "SIGSTOP":
        first.release(point)
        child.resume()
        all_let_go(first)
    assert {one: redis_client.lrange(keys.result(one), 0, -1) for one in found} == before
    # and the store holds each row once
    store = Store(StoreConfig(lite.uri))
    assert store.count(collection) == 4
    rows = store.get(collection, ids(requests))
    assert [row.metadata["n"] for row in rows if row is not None] == [0, 1, 2, 3]
    store.close()
    first.await_ready()
    at_rest(redis_client, keys, [first, second])
