"""``clipfleet.embed`` and ``clipfleet.search`` through a real Celery worker, from an app that has nothing of ours."""

from __future__ import annotations

import base64
import struct

import pytest

from clipfleet.schemas.request import Request
from support.raw_worker import RawWorker, toy_vector
from support.waiting import wait_until

pytestmark = pytest.mark.celery


def floats(seed: bytes) -> list[float]:
    data = toy_vector(seed)["data"]
    return [float(f"{x:.9g}") for x in struct.unpack(f"<{len(data) // 4}f", data)]


@pytest.fixture
def ask(app, start_celery, redis_server, keys):
    start_celery()
    with RawWorker(redis_server.url, keys):
        yield lambda name, **kwargs: app.send_task(name, kwargs=kwargs).get(timeout=40)


def test_given_a_fleet_when_tasks_are_sent_by_name_then_json_comes_back(ask):
    picture = b"the bytes of a picture"
    text = base64.b64encode(picture).decode()
    assert ask("clipfleet.embed", text="a cat") == {"ok": True, "vector": floats(b"a cat"), "model": "raw"}
    assert ask("clipfleet.embed", image=text)["vector"] == floats(picture)
    assert ask("clipfleet.embed", image=f"data:image/png;base64,{text}")["vector"] == floats(picture)
    url = {"url": "https://e.com/1.jpg"}
    assert ask("clipfleet.embed", image=url)["vector"] == floats(repr(url).encode())
    found = ask("clipfleet.search", text="a cat", limit=3, filter="year > 1990", output_fields=["year"])
    (hit,) = found["hits"]
    assert (found["ok"], hit["id"], hit["score"]) == (True, "a", 0.5)
    assert hit["metadata"]["inputs"] == ["collection", "filter", "limit", "output_fields", "text"]
    assert ask("clipfleet.search", vector=[0.5] * 8)["hits"][0]["metadata"]["inputs"] == [
        *("collection", "limit", "vector"),
    ]


def test_given_wrong_items_when_asked_then_failures_are_answers_and_cost_no_neighbour(ask):
    done = ask("clipfleet.embed", images=["no base64!", base64.b64encode(b"x").decode(), {"file": "/etc/passwd"}])
    assert (done["ok"], [each["ok"] for each in done["results"]]) == (False, [False, True, False])
    assert {each["error"]["code"] for each in done["results"] if not each["ok"]} == {"bad_request"}
    for wrong in ({}, {"text": "a", "texts": ["b"]}, {"text": 7}, {"texts": "a cat"}, {"image": 7}):
        assert ask("clipfleet.embed", **wrong)["error"]["code"] == "bad_request"
    for wrong in ({}, {"text": "a", "vector": [1.0]}, {"vector": ["x"]}, {"text": "a", "output_fields": "year"}):
        error = ask("clipfleet.search", **wrong)["error"]
        assert (error["code"], error["retryable"]) == ("bad_request", False)


def test_given_a_full_queue_when_asked_then_the_task_comes_again_until_there_is_room(
    app, start_celery, redis_server, redis_client, keys
):
    start_celery()
    redis_client.hset(keys.fleet, mapping={"capacity": 1, "bulk_capacity": 1})
    with RawWorker(redis_server.url, keys) as worker:
        worker.hold.clear()
        first, second = (app.send_task("clipfleet.embed", kwargs={"text": text}) for text in ("first", "second"))
        wait_until(lambda: "RETRY" in {first.state, second.state}, 30, "one of the two to be refused")
        worker.hold.set()
        assert [each.get(timeout=40)["ok"] for each in (first, second)] == [True, True]


def test_given_dead_letters_when_retried_then_those_that_succeed_are_gone(ask, redis_client, keys):
    def bury(request: bytes) -> None:
        fields = {"id": "x", "request": request, "code": "poisoned", "message": "", "deliveries": 3, "lane": "bulk"}
        redis_client.xadd(keys.dead, fields)

    bury(Request("x", "echo", {"data": 1}).encode())
    bury(Request("x", "echo", {"data": {"sha256": "0", "size": 99}}).encode())
    bury(Request("x", "fail", {"code": "corrupt_image"}).encode())
    answer = ask("clipfleet.retry_dead")
    assert answer == {"ok": False, "done": 1, "failed": {"too_large": 1, "corrupt_image": 1}, "left": 2}
    assert redis_client.xlen(keys.dead) == 2


def test_given_no_milvus_or_no_run_when_reconciled_then_it_says_so(ask):
    assert ask("clipfleet.reconcile", run="x")["error"]["code"] == "bad_request"
