"""``clipfleet.index_corpus``: killed, revoked, asked for twice, and never anything twice or not at all."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections import Counter
from random import Random

import pytest
from celery.exceptions import TaskRevokedError

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.tasks.runs import Runs
from support.raw_worker import RawWorker, answer
from support.waiting import wait_until

pytestmark = pytest.mark.celery

PICTURES = 200


class Shelf:
    """A worker's handler that remembers each row, and can be made to wait or to fail."""

    def __init__(self, pace_s: float = 0.0):
        self.rows: Counter[str] = Counter()
        self.bad: dict[str, ErrorCode] = {}
        self._pace_s = pace_s
        self._never = threading.Event()

    def __call__(self, request):
        if request.pipeline != "index_image":
            return answer(request)
        self._never.wait(self._pace_s)
        id_ = request.inputs["id"]
        if id_ in self.bad:
            raise error_for(self.bad[id_])
        self.rows[id_] += 1
        return {"id": id_}


@pytest.fixture
def folder(tmp_path):
    below = tmp_path / "pictures"
    for number in range(PICTURES):
        path = below / f"{number % 7}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"picture %d" % number)
    return below


@pytest.fixture
def ids(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.png")}


def start_run(app, *sources, **options):
    return app.send_task("clipfleet.index_corpus", kwargs={"sources": list(sources), **options})


def test_given_mixed_sources_when_indexed_then_all_are_and_the_parent_tells_it(
    app, start_celery, redis_server, keys, folder, ids
):
    with tarfile.open(folder.parent / "shard-000.tar", "w") as archive:
        for number in range(10):
            info = tarfile.TarInfo(f"{number:04}.png")
            info.size = 5
            archive.addfile(info, io.BytesIO(b"tar%02d" % number))
    lines = [json.dumps({"url": f"https://e.com/{number}.jpg", "id": f"row-{number}"}) for number in range(20)]
    (folder.parent / "rows.jsonl").write_text("\n".join([*lines, '{"id": "no address"}']) + "\n")
    (folder / "notes.txt").touch()
    shelf = Shelf()
    shelf.bad["row-3"] = ErrorCode.CORRUPT_IMAGE
    start_celery()
    with RawWorker(redis_server.url, keys, handler=shelf):
        result = start_run(app, "pictures", "shard-{000..001}.tar", "rows.jsonl", shards=3).get(timeout=60)
    assert shelf.rows == Counter(
        [*ids, *(f"shard-000/{n:04}" for n in range(10)), *(f"row-{n}" for n in range(20) if n != 3)]
    )
    assert (result["ok"], result["indexed"], result["shards_done"], result["gave_up"]) == (False, 229, 3, [])
    assert result["failed"] == {"bad_request": 1, "corrupt_image": 1, "fetch_failed": 1}
    assert result["skipped"] == 1
    assert {each["id"] for each in result["failures"]} == {"row-3", "no address", "shard-001.tar"}


def test_given_a_celery_worker_killed_in_mid_run_when_another_starts_then_it_goes_on_from_there(
    app, start_celery, redis_server, keys, folder, ids
):
    shelf = Shelf(pace_s=0.02)
    first = start_celery()
    with RawWorker(redis_server.url, keys, handler=shelf, count=1):
        run = start_run(app, "pictures", shards=2, step_s=1)
        wait_until(lambda: run.state == "PROGRESS" and run.info["indexed"] >= 40, 60, "40 pictures")
        first.kill()
        kept = run.info["indexed"]
        assert kept < PICTURES
        start_celery()
        result = run.get(timeout=90)
    assert set(shelf.rows) == ids
    assert (result["ok"], result["indexed"], result["failed"]) == (True, PICTURES, {})
    # Only what was under way at the kill, or answered in the second before it, was sent once more.
    assert sum(shelf.rows.values()) <= PICTURES + (PICTURES - kept)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_given_six_kills_at_any_moment_when_indexed_then_nothing_is_left_out_and_the_counts_are_true(
    app, start_celery, redis_server, keys, tmp_path
):
    random = Random(5)
    wanted = {f"{number}.png" for number in range(3000)}
    for name in wanted:
        (tmp_path / name).write_bytes(name.encode())
    shelf = Shelf(pace_s=0.005)
    with RawWorker(redis_server.url, keys, handler=shelf, count=1):
        run = start_run(app, "*.png", shards=3, step_s=0.5)
        seen = 0
        for kill in range(6):
            if kill % 2 == 0:
                worker = start_celery()
            more = seen + random.randrange(50, 250)
            wait_until(lambda more=more: run.state == "PROGRESS" and run.info["indexed"] >= more, 60, "more pictures")
            worker.kill() if kill % 2 else worker.kill_pool()
            seen = run.info["indexed"]
        start_celery()
        result = run.get(timeout=120)
    assert (result["ok"], result["indexed"], result["failed"]) == (True, 3000, {})
    assert set(shelf.rows) == wanted
    # Of each of two processes: 256 under way at a kill, and as many answered but not kept yet.
    assert sum(shelf.rows.values()) <= 3000 + 6 * 2 * 2 * 256


def test_given_a_fleet_that_dies_and_comes_back_when_indexed_then_its_pictures_have_waited(
    app, start_celery, redis_server, redis_client, keys, folder, ids
):
    start_celery("--pool", "threads")
    with RawWorker(redis_server.url, keys, handler=(first := Shelf(pace_s=0.02)), count=1):
        run = start_run(app, "pictures", shards=2, step_s=0.3)
        wait_until(lambda: run.state == "PROGRESS" and run.info["indexed"] >= 10, 60, "some pictures")
    wait_until(lambda: redis_client.zcard(keys.workers) == 0, 10, "nobody there")
    with RawWorker(redis_server.url, keys, handler=(second := Shelf())):
        result = run.get(timeout=90)
    assert (result["ok"], result["indexed"], result["failed"]) == (True, PICTURES, {})
    assert first.rows + second.rows == Counter(ids)


def test_given_each_step_delivered_many_times_when_indexed_then_each_picture_is_sent_once(
    app, start_celery, redis_server, redis_client, keys, tmp_path
):
    for number in range(1000):
        (tmp_path / f"{number}.png").write_bytes(b"%d" % number)
    shelf = Shelf(pace_s=0.003)
    runs = Runs(redis_client, keys)
    start_celery()
    with RawWorker(redis_server.url, keys, handler=shelf, count=1):
        run = start_run(app, "*.png", shards=2, step_s=0.1)
        wait_until(lambda: run.state == "PROGRESS", 60, "progress")
        name = run.info["run"]
        for least in (0, 1, 2):
            wait_until(lambda least=least: runs.shards(name, 2)[0].turn >= least, 30, f"turn {least}")
            for number, shard in enumerate(runs.shards(name, 2)):
                for _ in range(3):
                    app.send_task("clipfleet.index_shard", args=[name, number, shard.turn])
        assert run.get(timeout=90)["indexed"] == 1000
    assert shelf.rows == Counter(f"{number}.png" for number in range(1000))


def test_given_a_run_when_its_task_is_revoked_then_it_ends_there(
    app, start_celery, redis_server, redis_client, keys, tmp_path
):
    for number in range(1500):
        (tmp_path / f"{number}.png").write_bytes(b"%d" % number)
    shelf = Shelf(pace_s=0.004)
    start_celery()
    with RawWorker(redis_server.url, keys, handler=shelf, count=1):
        run = start_run(app, "*.png", shards=2, step_s=0.2)
        wait_until(lambda: run.state == "PROGRESS" and run.info["indexed"], 60, "progress")
        run.revoke()
        with pytest.raises(TaskRevokedError):
            run.get(timeout=60)
        wait_until(lambda: not redis_client.xlen(keys.lanes[1]), 30, "nothing under way")
    assert sum(shelf.rows.values()) < 1500
    assert run.state == "REVOKED"


def test_given_stop_index_when_a_run_goes_on_then_it_ends_without_waiting_for_its_step(
    app, start_celery, redis_server, redis_client, keys, folder
):
    shelf = Shelf(pace_s=0.05)
    start_celery()
    with RawWorker(redis_server.url, keys, handler=shelf, count=1):
        run = start_run(app, "pictures", shards=1, step_s=100)
        wait_until(lambda: run.state == "PROGRESS" and run.info["indexed"], 60, "progress")
        name = run.info["run"]
        assert app.send_task("clipfleet.stop_index", args=[run.id]).get(timeout=30) == {"ok": True, "stopped": [name]}
        with pytest.raises(TaskRevokedError):
            run.get(timeout=30)
        assert app.send_task("clipfleet.stop_index", args=[run.id]).get(timeout=30)["ok"] is False
        assert sum(shelf.rows.values()) < PICTURES
        wait_until(lambda: not redis_client.xlen(keys.lanes[1]), 30, "nothing under way")
    assert run.state == "REVOKED"


def test_given_the_same_corpus_twice_at_once_when_indexed_then_it_is_one_run_that_both_see(
    app, start_celery, redis_server, keys, folder, ids
):
    shelf = Shelf(pace_s=0.005)
    start_celery()
    with RawWorker(redis_server.url, keys, handler=shelf, count=1):
        both = [start_run(app, "pictures", step_s=1), start_run(app, "pictures", step_s=1)]
        results = [run.get(timeout=90) for run in both]
        assert results[0] == results[1]
        assert shelf.rows == Counter(ids)
        again = start_run(app, "pictures", step_s=1).get(timeout=90)
    assert (again["indexed"], set(shelf.rows.values())) == (PICTURES, {2})


def test_given_sources_that_cannot_be_when_asked_then_the_task_fails_with_what_a_stranger_can_read(
    app, start_celery, redis_server, keys, tmp_path
):
    (tmp_path / "empty").mkdir()
    start_celery()
    with RawWorker(redis_server.url, keys):
        for source, error in (
            ("nothing", FileNotFoundError),
            ("../elsewhere", ValueError),
            ("/etc", ValueError),
            ("/etc/*.png", ValueError),
            ("{empty,../..}", ValueError),
            ("empty", RuntimeError),
        ):
            with pytest.raises(error):
                start_run(app, source).get(timeout=30)
