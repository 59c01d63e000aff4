"""Point 8: Milvus down at the start, killed in mid-batch, hung, limiting rates, and back again."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from chaos.checks import LEASE_MS, answers, at_rest, held, pending, picture, pictures, texts
from clipfleet.producer import Client, requests
from clipfleet.schemas.errors import ErrorCode
from clipfleet.store import Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.fleet import admit
from support.redis_server import free_port
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.proxy import Proxy
    from support.redis_server import RedisServer

pytestmark = pytest.mark.chaos


@pytest.fixture
def own_lite(tmp_path: Path) -> Iterator[LiteServer]:
    """A Milvus Lite that the test may kill; not started yet."""
    server = LiteServer(tmp_path / "lite", port=free_port())
    yield server
    server.stop()


def rows_in(server: LiteServer, collection: str, names: list[str]) -> list[bool]:
    store = Store(StoreConfig(server.uri))
    try:
        return [row is not None for row in store.get(collection, names)]
    finally:
        store.close()


def test_a_milvus_that_is_down_at_the_start_holds_up_nobody_who_does_not_need_it(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], own_lite: LiteServer
) -> None:
    # Given a worker whose Milvus is not there
    worker = start_worker(milvus_uri=own_lite.uri, lease_ms=LEASE_MS, max_batch_size=4)
    patient, hasty = pictures(30, "late"), pictures(3, "late", "hasty")
    admit(redis_client, keys, patient)
    admit(redis_client, keys, hasty, ttl_ms=3_000)
    # Then embeddings are answered
    embedded = texts(40)
    admit(redis_client, keys, embedded)
    assert all(result.ok for result in answers(redis_client, keys, embedded).values())
    # what cannot wait is told what it was that failed, by its deadline
    found = answers(redis_client, keys, hasty, 10)
    assert {result.error.code for result in found.values()} == {ErrorCode.STORE_FAILED}
    # while what can wait is still there
    assert not any(redis_client.exists(keys.result(one.id)) for one in patient)
    # When Milvus comes, Then all of that is stored and answered, delivered once to the device
    own_lite.start()
    assert all(result.ok for result in answers(redis_client, keys, patient, 60).values())
    names = [one.id for one in (*patient, *hasty)]
    assert rows_in(own_lite, "late", names) == [True] * 30 + [False] * 3
    at_rest(redis_client, keys, [worker])


def test_a_milvus_killed_in_mid_batch_has_a_row_for_every_request_answered_ok(
    redis_client: redis.Redis,
    redis_server: RedisServer,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    own_lite: LiteServer,
) -> None:
    own_lite.start()
    worker = start_worker(milvus_uri=own_lite.uri, lease_ms=LEASE_MS, max_batch_size=16)
    with Client(redis_server.url, queue=keys.queue, timeout=120) as client:
        # Given a stream of pictures
        jobs = [
            client.submit(requests.index_image(picture(n), id=f"p{n}", collection="mid", metadata={"n": n}))
            for n in range(300)
        ]
        for after in (40, 160):
            # When Milvus is killed in the middle of it, twice
            wait_until(lambda after=after: sum(job.done() for job in jobs) >= after, 60, f"{after} answered")
            assert own_lite.pid is not None
            os.kill(own_lite.pid, signal.SIGKILL)
            wait_until(lambda: own_lite.pid is None, 10, "its end")
            assert client.embed_text("meanwhile", timeout=20).ok
            assert own_lite.ensure_alive()
        # Then every one is answered ok
        assert all(job.result(120).ok for job in jobs)
    # and has its row, with its content
    store = Store(StoreConfig(own_lite.uri))
    rows = store.get("mid", [f"p{n}" for n in range(300)])
    assert [row.metadata["n"] if row else None for row in rows] == list(range(300))
    assert store.count("mid") == 300
    store.close()
    at_rest(redis_client, keys, [worker])


def test_a_milvus_that_limits_rates_is_asked_more_gently_and_nothing_is_lost(
    redis_client: redis.Redis,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    lite: LiteServer,
    collection: str,
) -> None:
    worker = start_worker(hooks="support.hooks:RateLimited", milvus_uri=lite.uri, lease_ms=LEASE_MS)
    (name,) = worker.names
    (worker.barrier / "limit").touch()
    asked = pictures(20, collection)
    admit(redis_client, keys, asked)
    wait_until((worker.barrier / "limited").exists, 20, "the limit met")
    since = time.monotonic()

    # For longer than a lease they are kept, by the same worker, not run again
    def kept() -> bool:
        assert set(pending(redis_client, keys).values()) == {(name, 1)}
        return time.monotonic() - since > 1.5 * LEASE_MS / 1000

    wait_until(kept, 10, "one and a half leases")
    (worker.barrier / "limit").unlink()
    assert all(result.ok for result in answers(redis_client, keys, asked).values())
    assert rows_in(lite, collection, [one.id for one in asked]) == [True] * 20
    at_rest(redis_client, keys, [worker])


def test_a_milvus_that_says_nothing_delays_only_those_who_need_it(
    redis_client: redis.Redis,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    make_proxy: Callable[[int], Proxy],
    lite: LiteServer,
    collection: str,
) -> None:
    # Given a Milvus behind a network that swallows everything
    proxy = make_proxy(int(lite.uri.rpartition(":")[2]))
    worker = start_worker(milvus_uri=f"http://127.0.0.1:{proxy.port}", lease_ms=LEASE_MS)
    (first,) = pictures(1, collection, "first")
    admit(redis_client, keys, [first])
    assert answers(redis_client, keys, [first])["first0"].ok
    proxy.stall()
    asked = pictures(5, collection)
    admit(redis_client, keys, asked)
    wait_until(lambda: held(worker) == 5, 20, "five held")
    embedded = texts(20)
    admit(redis_client, keys, embedded)
    # Then embeddings are answered, and leases are kept though the call hangs
    assert all(result.ok for result in answers(redis_client, keys, embedded).values())
    since = time.monotonic()
    wait_until(lambda: time.monotonic() - since > 1.5 * LEASE_MS / 1000, 10, "one and a half leases")
    assert set(pending(redis_client, keys).values()) == {(worker.names[0], 1)}
    # and when it speaks again the rest is stored
    proxy.resume()
    assert all(result.ok for result in answers(redis_client, keys, asked, 60).values())
    assert rows_in(lite, collection, [one.id for one in asked]) == [True] * 5
    at_rest(redis_client, keys, [worker])
