"""All of it, real: a model, Milvus Lite, Celery workers that are killed, and a caller without clipfleet."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clipfleet.producer import Client
from clipfleet.store.lite import LiteServer
from support.cli import clean_environment
from support.fleet import WorkerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.celery

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "examples" / "celery_client.py").read_text(encoding="utf-8")
(DOCUMENTED,) = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "celery.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
# A caller who has Celery and in whose environment there is no clipfleet.
STRANGER = "import sys; sys.modules['clipfleet'] = None\n"
PICTURES = 200


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def pictures(tmp_path):
    below = tmp_path / "pictures"
    below.mkdir()
    for number in range(PICTURES):
        (below / f"{number:03}.png").write_bytes(picture(number))
    (below / "broken.png").write_bytes(b"no picture")
    return below


@pytest.fixture
def lite(tmp_path):
    with LiteServer(tmp_path / "lite") as server:
        yield server


def test_given_a_celery_worker_killed_in_mid_run_then_the_store_holds_each_picture_once_and_reconciles(
    app, start_celery, redis_server, redis_client, keys, pictures, lite
):
    more = {"MILVUS_URI": lite.uri}
    first = start_celery(**more)
    with WorkerProcess(redis_server.url, keys, milvus_uri=lite.uri, max_batch_size=8):
        run = app.send_task(
            "clipfleet.index_corpus",
            kwargs={"sources": ["pictures"], "collection": "shop", "shards": 2, "step_s": 0.1},
        )
        wait_until(lambda: run.state == "PROGRESS" and run.info["indexed"] >= 10, 60, "some pictures")
        first.kill()
        assert run.state == "PROGRESS"
        start_celery(**more)
        result = run.get(timeout=90)
        assert (result["ok"], result["indexed"], result["failed"]) == (False, PICTURES, {"unsupported_media": 1})
        assert result["failures"][0]["id"] == "broken.png"
        # What the killed one had sent is run as well, and may come later: it rests while the store is busy.
        wait_until(lambda: not redis_client.xlen(keys.lanes[1]), 30, "the queue to be empty")
        compared = app.send_task("clipfleet.reconcile", args=[result["run"]]).get(timeout=30)
        with Client(redis_server.url, queue=keys.queue, timeout=30) as client:
            hits = client.search(image=picture(0), collection="shop", limit=PICTURES + 10).hits
    assert compared == {
        "ok": True, "rows": PICTURES, "indexed": PICTURES, "collection": "shop", "state": "finished",
    }  # fmt: skip
    assert {hit.id for hit in hits} == {f"{number:03}.png" for number in range(PICTURES)}
    assert (hits[0].id, hits[0].score) == ("000.png", pytest.approx(1, abs=1e-4))


def test_given_a_project_with_celery_and_without_clipfleet_when_it_does_as_documented_then_it_gets_all_of_it(
    start_celery, redis_server, keys, pictures, lite
):
    broker = f"{redis_server.url}/1"

    def stranger(script: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", STRANGER + script, "pictures"],
            env=clean_environment(CELERY_BROKER_URL=broker),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    start_celery()
    with WorkerProcess(redis_server.url, keys, milvus_uri=lite.uri):
        shown = stranger(EXAMPLE)
        assert DOCUMENTED.count("redis://localhost:6379/1") == 2
        documented = stranger(DOCUMENTED.replace("redis://localhost:6379/1", broker))
    assert shown[0].startswith("a vector of ")
    assert any(f"{PICTURES} indexed, 1 failed" in line for line in shown)
    assert len([line for line in shown if line.endswith(".png")]) == 3
    assert documented[1] == str(PICTURES)
    assert documented[2].count(".png") == 3


@pytest.mark.timeout(240)
def test_given_an_alias_when_reindexed_then_searches_go_from_the_whole_old_to_the_whole_new(
    app, start_celery, redis_server, keys, tmp_path, lite
):
    start_celery(MILVUS_URI=lite.uri)
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / "in" / f"{number}.png").write_bytes(picture(number))

    def reindex(**options):
        return app.send_task("clipfleet.reindex", args=[["in"], "photos"], kwargs=options).get(timeout=60)

    with (
        WorkerProcess(redis_server.url, keys, milvus_uri=lite.uri),
        Client(redis_server.url, queue=keys.queue, timeout=30) as client,
    ):

        def found():
            return {hit.id for hit in client.search(image=picture(0), collection="photos", limit=50).hits}

        first = reindex()
        assert (first["ok"], first["switched"], first["alias"], first["before"]) == (True, True, "photos", "")
        assert len(found()) == 12
        (tmp_path / "in" / "0.png").rename(tmp_path / "in" / "new.png")
        second = reindex(collection="photos_b")
        assert (second["switched"], second["before"]) == (True, first["collection"])
        # A worker trusts what it knows of an alias for some seconds.
        wait_until(lambda: "new.png" in found(), 90, "the new collection")
        assert found() == {"new.png", *(f"{number}.png" for number in range(1, 12))}
        (tmp_path / "in" / "broken.png").write_bytes(b"no picture")
        third = reindex(collection="photos_c", max_failed=0.05)
        assert (third["ok"], third["switched"]) == (False, False)
        assert "1 failed" in third["why"]
        assert "0.png" not in found()
