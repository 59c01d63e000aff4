"""A real server that is killed in mid-write: nothing acknowledged is lost, and readiness is not its health page."""

from __future__ import annotations

from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clipfleet.store import Row, Store, StoreConfig, StoreUnavailable, retrying

if TYPE_CHECKING:
    from store.milvus_server import MilvusServer

pytestmark = [pytest.mark.milvus_server, pytest.mark.slow, pytest.mark.timeout(600)]
DIMENSION = 32


def test_given_kill_9_in_mid_write_when_restarted_then_every_acknowledged_row_is_there(
    milvus_server: MilvusServer,
) -> None:
    store = Store(StoreConfig(milvus_server.uri, consistency="Strong"))
    store.drop("killed")
    store.ensure_collection("killed", fingerprint="f", dimension=DIMENSION)
    acknowledged: list[str] = []
    enough = Event()

    def write() -> None:
        vectors = np.random.default_rng(3).standard_normal((256, DIMENSION)).astype(np.float32)
        while True:
            start = len(acknowledged)
            batch = [Row(f"r{start + i}", vectors[i], {"n": start + i}) for i in range(256)]
            try:
                assert not any(store.upsert("killed", batch))
            except StoreUnavailable:
                return
            acknowledged.extend(row.id for row in batch)
            if len(acknowledged) >= 5120:
                enough.set()

    writer = Thread(target=write)
    writer.start()
    assert enough.wait(120)
    milvus_server.kill()
    writer.join()
    milvus_server.start()

    began = monotonic()
    version = retrying(store.probe, deadline=began + 240, stop=Event())
    print(f"{monotonic() - began:.1f} s from the health page to the first search")
    found = retrying(lambda: store.get("killed", acknowledged), deadline=monotonic() + 120, stop=Event())

    assert version == "v2.3.5-lite"
    assert [row.id for row in found if row is not None] == acknowledged
    store.drop("killed")
    store.close()
