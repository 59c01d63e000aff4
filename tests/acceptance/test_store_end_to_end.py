"""Client, queue, worker and a real Milvus Lite: pictures in, hits out; and what happens while the store is away."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from clipfleet.producer import Client, requests
from clipfleet.schemas.errors import BadInput, ErrorCode, StoreFailed
from clipfleet.store import Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteServer]:
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server


@pytest.fixture
def client(redis_server: RedisServer, keys: QueueKeys) -> Iterator[Client]:
    with Client(redis_server.url, queue=keys.queue, timeout=30) as made:
        yield made


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def cosine(one: object, other: object) -> float:
    return float(np.asarray(one, dtype=np.float64) @ np.asarray(other, dtype=np.float64))


def test_pictures_are_indexed_found_replaced_and_taken_out_again(
    client: Client, start_worker: Callable[..., WorkerProcess], lite: LiteServer, redis_client: object
) -> None:
    start_worker(milvus_uri=lite.uri)
    # Given thirty pictures with metadata
    for result in client.map(
        requests.index_image(picture(i), id=f"p{i}", metadata={"n": i, "tag": 'x" or 1==1'}, collection="things")
        for i in range(30)
    ):
        assert result.ok, result.error
    # Then each is found by itself first, with its metadata as it was given
    hits = client.search(image=picture(7), collection="things", limit=3).hits
    assert hits[0].id == "p7"
    assert hits[0].score == pytest.approx(1, abs=1e-4)
    assert hits[0].metadata == {"n": 7, "tag": 'x" or 1==1'}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    # by its vector, and within a filter
    vector = client.embed_image(picture(7)).vector
    assert client.search(vector=vector, collection="things", limit=1).hits[0].id == "p7"
    filtered = client.search(vector=vector, collection="things", filter="n >= 10 and n < 12", limit=30).hits
    assert {hit.id for hit in filtered} == {"p10", "p11"}
    # by words: the text tower's vector against the pictures'
    by_words = client.search("a thing", collection="things", limit=30).hits
    assert len(by_words) == 30
    text = client.embed_text("a thing").vector
    assert by_words[0].score == pytest.approx(
        max(cosine(text, client.embed_image(picture(i)).vector) for i in range(30)), abs=1e-4
    )
    # Indexed again under its id it is replaced
    client.index_image(picture(99), id="p7", collection="things")
    found = client.search(image=picture(99), collection="things", limit=1).hits[0]
    assert (found.id, found.metadata) == ("p7", {})
    # and deleted it is gone
    assert client.delete(ids=["p7", "p8"], collection="things").outputs["deleted"] == 2
    assert {hit.id for hit in client.search(image=picture(99), collection="things", limit=30).hits} == {
        f"p{i}" for i in range(30) if i not in {7, 8}
    }


def test_embed_index_and_search_share_one_batch(
    client: Client, start_worker: Callable[..., WorkerProcess], lite: LiteServer, redis_client: object
) -> None:
    start_worker(milvus_uri=lite.uri, max_delay_ms=300)
    client.index_image(picture(0), id="first", collection="shared")
    jobs = [
        client.submit("embed_image", {"image": picture(1)}),
        client.submit("index_image", {"image": picture(2), "id": "second", "collection": "shared"}),
        client.submit("search", {"image": picture(0), "collection": "shared"}),
    ]
    assert [job.result(20).notes["batch_size"] for job in jobs] == [3, 3, 3]


def test_given_bulk_writes_that_wait_when_a_search_comes_then_it_goes_before_them(
    client: Client,
    start_worker: Callable[..., WorkerProcess],
    lite: LiteServer,
    redis_server: RedisServer,
    keys: QueueKeys,
) -> None:
    worker = start_worker(hooks="support.hooks:HeldWrite", milvus_uri=lite.uri)
    client.index_image(picture(1), id="first", collection="held")
    # Given a write that does not come to an end, and more of them behind it
    (worker.barrier / "hold-write").touch()
    with Client(redis_server.url, queue=keys.queue, lane="bulk", timeout=60) as bulk:
        jobs = [bulk.submit(requests.index_image(picture(i), id=f"b{i}", collection="held")) for i in range(40)]
        wait_until(lambda: list(worker.barrier.glob("write.*")), 20, "a write held")
        # When somebody searches then the answer is there while they wait
        assert [hit.id for hit in client.search(image=picture(1), collection="held").hits] == ["first"]
        (worker.barrier / "release-write").touch()
        assert all(job.result(60).ok for job in jobs)
    assert len(client.search("anything", collection="held", limit=50).hits) == 41


def test_a_collection_of_another_model_is_refused(
    client: Client, start_worker: Callable[..., WorkerProcess], lite: LiteServer, redis_client: object
) -> None:
    start_worker(milvus_uri=lite.uri)
    store = Store(StoreConfig(lite.uri))
    store.ensure_collection("theirs", fingerprint="another", dimension=16)
    for call in (
        lambda: client.index_image(picture(0), id="a", collection="theirs"),
        lambda: client.search("x", collection="theirs"),
    ):
        with pytest.raises(StoreFailed) as caught:
            call()
        assert caught.value.code is ErrorCode.MODEL_MISMATCH
    with pytest.raises(BadInput):
        client.search("x", collection="no such name!")
    store.close()


@pytest.mark.chaos
def test_while_the_store_is_away_embeddings_flow_and_the_rest_waits_for_its_deadline(
    client: Client,
    start_worker: Callable[..., WorkerProcess],
    tmp_path_factory: pytest.TempPathFactory,
    redis_client: object,
) -> None:
    data = tmp_path_factory.mktemp("away")
    server = LiteServer(data)
    server.start()
    port = server.uri.rpartition(":")[2]
    # Given a worker with a small appetite and a store that goes away
    start_worker(milvus_uri=server.uri, max_batch_size=2)
    client.index_image(picture(0), id="before", collection="away")
    server.stop()
    # When more is to be indexed than may wait at the store
    patient = [
        client.submit("index_image", {"image": picture(i), "id": f"p{i}", "collection": "away"}, timeout=60)
        for i in range(1, 25)
    ]
    hasty = client.submit("index_image", {"image": picture(50), "id": "hasty", "collection": "away"}, timeout=2)
    # Then embeddings are answered all the while
    for i in range(20):
        assert client.embed_text(f"text {i}", timeout=20).ok
    # what cannot wait is told so by its deadline
    with pytest.raises(StoreFailed) as caught:
        hasty.result(20)
    assert caught.value.code is ErrorCode.STORE_FAILED
    # and when the store is back everything that waited is there
    back = LiteServer(data, port=int(port))
    back.start()
    assert all(job.result(60).ok for job in patient)
    store = Store(StoreConfig(back.uri))
    rows = store.get("away", ["before", *[f"p{i}" for i in range(1, 25)], "hasty"])
    assert [row is not None for row in rows] == [True] * 25 + [False]
    store.close()
    back.stop()


def test_many_threads_share_one_client(
    client: Client, start_worker: Callable[..., WorkerProcess], redis_client: object
) -> None:
    start_worker(max_delay_ms=5)
    solo = {i: client.embed_image(picture(i)).vector.buffer for i in range(40)}
    found: dict[int, bytes] = {}

    def ask(start: int) -> None:
        for i in range(start, 40, 8):
            found[i] = client.embed_image(picture(i)).vector.buffer

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(found) == 40, 5, "all answers")
    assert all(cosine(np.frombuffer(found[i], "<f4"), np.frombuffer(solo[i], "<f4")) > 0.9999 for i in range(40))
