"""Point 14: the audit, for a minute; and that its books would show what went wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from chaos.audit import Books, count_answers, count_rows, reference, run, settle_down, table
from chaos.faults import FAULTS
from chaos.scene import COLLECTION, Scene
from clipfleet.store import Store, StoreConfig
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]
SEED = int(os.environ.get("CLIPFLEET_CHAOS_SEED", "7"))


def test_a_minute_of_faults_and_the_books_balance(tmp_path: Path) -> None:
    books = run(60, SEED, folder=tmp_path)
    print(table(books, SEED))
    assert not books.wrong, table(books, SEED)
    assert sum(books.outcomes.values()) > 500
    assert books.rows > 50
    assert len(books.faults) > len(FAULTS) / 2


def test_the_audit_finds_a_lost_row_a_changed_one_a_second_answer_and_a_leak(tmp_path: Path) -> None:
    books = Books()
    with Scene(tmp_path, 1) as scene, scene.redis.client() as client:
        expected = reference(scene)
        books.memory, books.rss = (client.info("memory")["used_memory"], 0), (0, 0)
        for producer in scene.producers:
            producer.start()
        wait_until(lambda: sum(len(one.sent) for one in scene.producers) > 120, 60, "some load")
        for producer in scene.producers:
            producer.stop()
        settle_down(scene, client, books)
        # Given books that balance
        count_answers(scene, client, books, expected)
        count_rows(scene, books, expected)
        assert not books.wrong
        # When a row goes, another changes, an answer comes twice or not at all, and an entry stays
        stored = [one.job.id for each in scene.producers for one in each.sent if one.kind == "index_image"]
        store = Store(StoreConfig(scene.lite.uri))
        said = scene.workers[0].presence()[0]
        store.ensure_collection(COLLECTION, fingerprint=said["fingerprint"], dimension=int(said["dimension"]))
        store.delete(COLLECTION, ids=stored[:1])
        (row,) = store.get(COLLECTION, stored[1:2])
        assert row is not None
        store.upsert(COLLECTION, [type(row)(row.id, row.vector, {"n": -1})])
        store.close()
        by_key = scene.producers[0].sent
        for one in by_key[1:]:
            client.rpush(scene.keys.result(one.job.id), b"x")
        client.rpush(scene.keys.result(by_key[1].job.id), b"x")
        client.set(scene.keys.base + "forgotten", "1")
        # Then each is named
        books.wrong.clear()
        settle_down_soon(scene, client, books)
        count_answers(scene, client, books, expected)
        count_rows(scene, books, expected)
    found = "\n".join(books.wrong)
    assert f"the row of {stored[0]} is missing" in found
    assert f"the row of {stored[1]} is another" in found
    assert f"{by_key[0].job.id} has 0 results" in found
    assert f"{by_key[1].job.id} has 2 results" in found
    assert "forgotten has no TTL" in found


def settle_down_soon(scene: Scene, client: object, books: Books) -> None:
    """As the audit does, without its patience: what is wrong here stays wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chaos.audit.REST_S", 2.0)
        settle_down(scene, client, books)
