"""All failures of a run by pages, and how fast a run goes."""

from __future__ import annotations

import json
import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.tasks import failures as module
from clipfleet.tasks.eta import Pace, count_in_background, estimate
from clipfleet.tasks.failures import keep, page
from clipfleet.tasks.keys import RunKeys
from clipfleet.tasks.plan import make_plan
from support.raw_worker import RawWorker, answer
from support.waiting import wait_until

RUN = "0" * 20


def failed(*names):
    return [{"id": name, "label": f"x/{name}", "code": "corrupt_image", "message": "no"} for name in names]


@pytest.fixture
def add(redis_client, keys):
    def one(number, *failures):
        with redis_client.pipeline() as pipe:
            keep(pipe, RunKeys(keys).failures(RUN, number), failures, 600)
            pipe.execute()

    return one


@pytest.fixture
def pages(redis_client, keys):
    return lambda after, limit: page(redis_client, RunKeys(keys), RUN, after, limit)


def test_given_failures_of_several_shards_when_paged_while_more_come_then_each_is_given_once(add, pages):
    add(0, *failed("a0", "a1", "a2"))
    add(2, *failed("c0"))
    seen, after = [], [0, 0, 0]
    found, after, held = pages(after, 2)
    seen += found
    assert ([each["id"] for each in found], after, held) == (["a0", "a1"], [2, 0, 0], 4)
    add(0, *failed("a3"))
    add(1, *failed("b0", "b1"))
    while True:
        found, after, held = pages(after, 2)
        seen += found
        if not found:
            break
    assert sorted(each["id"] for each in seen) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]
    assert seen[0] == failed("a0")[0]
    assert (sum(after), held) == (7, 7)


def test_given_more_failures_than_are_kept_when_added_then_the_first_ones_stay(add, pages, monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT", 5)
    add(0, *failed("a", "b", "c"))
    add(0, *failed("d", "e", "f", "g"))
    add(0)
    found, after, held = pages([0], 100)
    assert ("".join(each["id"] for each in found), after, held) == ("abcde", [5], 5)


def test_given_endless_texts_when_kept_then_they_are_cut_and_ids_are_not(add, pages):
    add(0, {"id": "i" * 1000, "label": "l" * 1000, "code": "bad_request", "message": "ü" * 501})
    ((one,), _, _) = pages([0], 1)
    assert (one["id"], len(one["label"]), one["message"]) == ("i" * 1000, 500, "ü" * 499 + "…")


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6), st.none() | st.integers(-1, 10**6))
def test_an_estimate_never_promises_what_it_cannot_know(span_ms, moved, done, total):
    said = estimate(span_ms, moved, done, total)
    assert ("total" in said) == (total is not None and total >= 0)
    assert ("per_second" in said) == (span_ms >= 1_000 and moved > 0)
    assert ("left_s" in said) == ({"total", "per_second"} <= set(said))
    assert said.get("left_s", 0) >= 0
    assert said.get("total", done) >= done


def test_given_a_run_that_is_looked_at_when_it_moves_then_its_pace_is_that_of_the_last_looks(redis_client, keys):
    pace = Pace(redis_client, RunKeys(keys), RUN)
    assert pace.info(1_000, 0) == {}
    assert pace.info(3_000, 100) == {"per_second": 50.0}
    for look in range(300):
        pace.info(1_000_000 + 100 * look, 100 + look)
    assert pace.info(1_030_000, 400) == {"per_second": 10.0}


def test_given_a_corpus_when_counted_then_the_total_is_that_of_its_units_and_unknown_is_known_as_such(
    redis_client, keys, tmp_path
):
    (tmp_path / "a").mkdir()
    for number in range(7):
        (tmp_path / "a" / f"{number}.png").write_bytes(b"x")
    (tmp_path / "t.csv").write_text("url\n" + "".join(f"https://e.com/{n}.jpg\n" for n in range(5)))
    options = {"collection": "images", "shards": 2, "columns": {}, "step_s": 1.0, "patience_s": 1.0}
    plan = make_plan(["a", "t.csv"], tmp_path, **options)
    pace = Pace(redis_client, RunKeys(keys), RUN)
    assert not pace.is_counted
    begun, go, counted = threading.Event(), threading.Event(), []

    def count():
        begun.set()
        assert go.wait(30)
        pace.count(plan, tmp_path)
        counted.append(1)

    for _ in range(3):
        count_in_background(RUN, count)
    assert begun.wait(30)
    go.set()
    wait_until(lambda: pace.is_counted and counted, 30, "it is counted")
    assert (pace.info(1, 3)["total"], counted) == (12, [1])
    (tmp_path / "t.csv").unlink()
    pace.count(plan, tmp_path)
    assert pace.info(2, 3) == {}
    assert pace.is_counted


class _Picky:
    """A worker's handler that takes its time, and refuses one picture in four."""

    def __init__(self):
        self._never = threading.Event()

    def __call__(self, request):
        self._never.wait(0.03)
        if request.pipeline == "index_image" and int(request.inputs["id"][:3]) % 4 == 0:
            raise error_for(ErrorCode.CORRUPT_IMAGE)
        return answer(request)


@pytest.mark.celery
def test_given_a_run_with_many_failures_when_asked_by_json_alone_then_every_one_is_told(
    app, start_celery, redis_server, keys, tmp_path
):
    (tmp_path / "pictures").mkdir()
    for number in range(200):
        (tmp_path / "pictures" / f"{number:03}.png").write_bytes(b"%d" % number)
    start_celery()
    with RawWorker(redis_server.url, keys, handler=_Picky()):
        run = app.send_task("clipfleet.index_corpus", kwargs={"sources": ["pictures"], "shards": 2})

        def progress():
            return run.info if run.state == "PROGRESS" and "left_s" in run.info else None

        info = wait_until(progress, 60, "the time that is left")
        assert (info["total"], info["per_second"] > 0, info["left_s"] > 0) == (200, True, True)
        result = run.get(timeout=90)
        assert (result["indexed"], result["failed"]) == (150, {"corrupt_image": 50})
        told, asked = [], {"limit": Random(1).randint(7, 13)}
        while True:
            found = app.send_task("clipfleet.index_failures", args=[result["run"]], kwargs=asked).get(timeout=30)
            assert found["ok"], found
            told += found["failures"]
            asked["after"] = found["after"]
            if not found["more"]:
                break
        assert (found["failed"], found["left_out"]) == ({"corrupt_image": 50}, 0)
        assert sorted(each["id"] for each in told) == [f"{number:03}.png" for number in range(0, 200, 4)]
        assert {each["code"] for each in told} == {"corrupt_image"}
        assert json.loads(json.dumps(told)) == told
        for wrong in (
            {"run": "nobody's"},
            {"run": "f" * 20},
            {"run": result["run"], "after": [0]},
            {"run": result["run"], "after": [0, -1]},
            {"run": result["run"], "limit": 0},
        ):
            refused = app.send_task("clipfleet.index_failures", kwargs=wrong).get(timeout=30)
            assert (refused["ok"], refused["error"]["code"]) == (False, "bad_request")
