"""The client for threads against a real Redis and a worker of the protocol alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clipfleet.producer import (
    BadInput,
    Cancelled,
    Client,
    ErrorCode,
    Expired,
    ModelFailed,
    QueueFull,
    RequestFailed,
    Unavailable,
    Url,
    WorkerPath,
    requests,
)
from support.raw_worker import RawWorker, toy_vector
from support.waiting import quickest, wait_until


def test_each_method_gives_its_result(client, worker, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"picture")
    by_bytes = client.embed_image(b"picture")
    assert by_bytes.vector.buffer == toy_vector(b"picture")["data"]
    assert client.embed_image(file).vector == by_bytes.vector
    assert client.embed_text("hello").vector.norm() == pytest.approx(1.0, abs=1e-6)
    assert client.embed_image(Url("https://a/b")).vector != client.embed_image(WorkerPath("pics/b")).vector
    assert client.search("heart", limit=3).hits[0].metadata["inputs"] == ["collection", "limit", "text"]
    assert client.index_image(b"p", id="x", metadata={"k": 1}).outputs["id"] == "x"
    assert client.delete(ids=["a", "b"]).outputs == {"deleted": 2}
    assert client.run("echo", {"data": [1, {"a": None}]}).outputs == {"data": [1, {"a": None}]}


def test_a_bare_str_as_picture_is_a_type_error_that_says_what_to_write(client):
    with pytest.raises(TypeError, match=r"pathlib\.Path\(\.\.\.\).*Url\(\.\.\.\).*WorkerPath"):
        client.embed_image("/etc/passwd")


@pytest.mark.parametrize(
    ("code", "family"),
    [("corrupt_image", BadInput), ("model_failed", ModelFailed), ("expired", Expired), ("of_the_future", ModelFailed)],
)
def test_a_failure_is_raised_by_its_family(client, worker, code, family):
    with pytest.raises(family, match="because") as caught:
        client.run("fail", {"code": code, "message": "because"})
    assert caught.value.request_id


def test_submits_from_many_threads_share_admit_calls_and_two_connections(client, worker, redis_client):
    client.run("echo", {"data": 0})
    redis_client.config_resetstat()
    worker.hold.clear()
    jobs = [client.submit("echo", {"data": number}) for number in range(1000)]
    assert [job.accepted(10).id for job in jobs] == [job.id for job in jobs]
    names = [c["name"] for c in redis_client.client_list()]
    assert names.count("clipfleet-producer") == 2
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] <= 200
    worker.hold.set()
    assert [job.result().outputs["data"] for job in jobs] == list(range(1000))


def test_many_threads_get_each_their_own_answer(client, worker):
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda n: client.run("echo", {"data": n}).outputs["data"], range(500)))
    assert answers == list(range(500))


def test_two_waiters_of_one_job_both_get_it(client, worker):
    worker.hold.clear()
    job = client.submit("echo", {"data": 1})
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(job.result) for _ in range(2)]
        job.accepted(5)
        worker.hold.set()
        assert [each.result(5).outputs["data"] for each in waiting] == [1, 1]
    assert job.done()


def test_result_with_a_timeout_leaves_the_request_under_way(client, worker):
    worker.hold.clear()
    job = client.submit("echo", {"data": 1})
    with pytest.raises(TimeoutError):
        job.result(0.05)
    assert not job.done()
    worker.hold.set()
    assert job.result().ok


def test_without_a_worker_a_call_is_unavailable_within_a_second(redis_server, keys, redis_client):
    def call():
        with (
            Client(redis_server.url, queue=keys.queue) as client,
            pytest.raises(Unavailable, match=f"no worker on queue '{keys.queue}'"),
        ):
            client.embed_text("x")

    assert quickest(call) < 1
    assert redis_client.xlen(keys.lanes[0]) == 0


def test_a_worker_whose_heartbeat_is_old_does_not_count(client, keys, redis_client):
    seconds, _ = redis_client.time()
    redis_client.zadd(keys.workers, {"dead": (seconds - 11) * 1000})
    with pytest.raises(Unavailable, match="no worker"):
        client.embed_text("x")


def test_waiting_for_a_worker_is_possible(redis_server, redis_client, keys):
    with Client(redis_server.url, queue=keys.queue, wait_for_worker=True, timeout=10) as client:
        job = client.submit("echo", {"data": 1}).accepted(5)
        assert redis_client.xlen(keys.lanes[0]) == 1
        with RawWorker(redis_server.url, keys):
            assert job.result().outputs == {"data": 1}


def test_a_full_queue_refuses_with_a_time_to_come_back(redis_server, redis_client, keys, leftovers):
    leftovers.expected("no worker takes the two that are in")
    redis_client.hset(keys.fleet, mapping={"capacity": 2, "rate": 10})
    with Client(redis_server.url, queue=keys.queue, wait_for_worker=True, timeout=5) as client:
        for _ in range(2):
            client.submit("echo", {"data": 1}).accepted(5)
        with pytest.raises(QueueFull) as caught:
            client.run("echo", {"data": 1})

        def refused():
            with pytest.raises(QueueFull):
                client.run("echo", {"data": 1})

        assert quickest(refused) < 0.5
    assert caught.value.retry_after == pytest.approx(0.2)
    assert caught.value.retryable
    assert redis_client.xlen(keys.lanes[0]) == 2


def test_a_request_above_the_queues_limit_is_too_large_and_its_neighbours_go_in(client, worker, redis_client, keys):
    redis_client.hset(keys.fleet, "max_request_bytes", 1000)
    jobs = [client.submit("echo", {"data": b"x" * size}) for size in (10, 2000, 20)]
    assert [job.outcome(5).ok for job in jobs] == [True, False, True]
    assert jobs[1].outcome().error.code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_far_above_the_limit_is_refused_without_being_sent(redis_server, redis_client, keys, worker, waits):
    redis_client.hset(keys.fleet, "max_request_bytes", 100_000)
    with Client(redis_server.url, queue=keys.queue, timeout=10, wait_for_worker=waits) as client:
        before = redis_client.info("stats")["total_net_input_bytes"]
        with pytest.raises(BadInput, match=r"too_large: .* takes at most 100000"):
            client.embed_image(b"x" * 20_000_000)
        with pytest.raises(BadInput, match="too_large"):
            client.embed_image(b"x" * 300_000_000)
        assert redis_client.info("stats")["total_net_input_bytes"] - before < 1_000_000
        assert client.run("echo", {"data": 1}).ok


def test_a_client_refuses_more_than_its_limit_of_unanswered(redis_server, keys, worker):
    worker.hold.clear()
    with Client(redis_server.url, queue=keys.queue, max_unanswered=3) as client:
        jobs = [client.submit("echo", {"data": n}) for n in range(3)]
        with pytest.raises(QueueFull, match="3 requests unanswered"):
            client.submit("echo", {"data": 3})
        worker.hold.set()
        assert all(job.result(5).ok for job in jobs)


def test_an_expired_request_ends_by_its_deadline_without_the_worker(client, worker):
    worker.hold.clear()
    started = time.monotonic()
    with pytest.raises(Expired):
        client.run("echo", {"data": 1}, timeout=0.3)
    assert 0.25 < time.monotonic() - started < 2


def test_a_request_with_a_key_ends_by_its_deadline_too(redis_server, redis_client, keys, leftovers):
    leftovers.expected("no worker takes what was admitted")
    with Client(redis_server.url, queue=keys.queue, wait_for_worker=True) as client:
        began = time.monotonic()
        with pytest.raises(Expired):
            client.submit("echo", {"data": 1}, timeout=0.3, reply="key").result()
        assert 0.3 <= time.monotonic() - began < 3.0


def test_the_deadline_travels_as_time_to_live_by_the_servers_clock(redis_server, redis_client, keys, leftovers):
    leftovers.expected("nobody takes it")
    with Client(redis_server.url, queue=keys.queue, wait_for_worker=True, timeout=100) as client:
        client.submit("echo", {"data": 1}).accepted(5)
        client.submit("index_image", {"image": b"x"}, timeout=200).accepted(5)
    seconds, _ = redis_client.time()
    lifetimes = [int(fields[b"d"]) / 1000 - seconds for _, fields in redis_client.xrange(keys.lanes[0])]
    assert lifetimes == pytest.approx([100, 200], abs=5)


def test_a_cancelled_job_ends_and_the_workers_can_know(client, worker, redis_client, keys):
    worker.hold.clear()
    job = client.submit("echo", {"data": 1}).accepted(5)
    job.cancel()
    with pytest.raises(Cancelled):
        job.result(5)
    wait_until(lambda: redis_client.exists(keys.cancel(job.id)), 5, "the cancel key")
    assert 0 < redis_client.pttl(keys.cancel(job.id)) <= 10_000
    worker.hold.set()
    assert client.run("echo", {"data": 2}).ok  # its late result disturbs nobody


def test_a_result_under_a_key_is_found_by_another_client(redis_server, keys, client, worker, redis_client):
    job = client.submit("echo", {"data": 7}, reply="key", reply_ttl_ms=5_000).accepted(5)
    with Client(redis_server.url, queue=keys.queue) as other:
        found = other.job(job.id)
        assert found.result(5).outputs == {"data": 7}
        assert found.result(5).outputs == {"data": 7}
        assert other.job(job.id).result(5).outputs == {"data": 7}
    assert 0 < redis_client.pttl(keys.result(job.id)) <= 5_000
    assert job.result(5).outputs == {"data": 7}


def test_a_job_that_never_was_is_a_timeout(client):
    with pytest.raises(TimeoutError):
        client.job("never-was").result(0.1)
    with pytest.raises(ValueError, match="id"):
        client.job("no id")


def test_the_bulk_lane_is_another_stream(client, worker, redis_client, keys):
    worker.hold.clear()
    job = client.submit("echo", {"data": 1}, lane="bulk").accepted(5)
    assert redis_client.xlen(keys.lanes[1]) == 1
    worker.hold.set()
    assert job.result().ok


def test_a_slow_consumer_stops_nobody_else(client, worker):
    stream = client.map((requests.echo(n) for n in range(200)), max_in_flight=50)
    next(stream)
    assert all(client.run("echo", {"data": n}).outputs["data"] == n for n in range(100))
    assert len(list(stream)) == 199


def test_an_id_in_use_is_refused(client, worker):
    worker.hold.clear()
    first = client.submit("echo", {"data": 1}, id="same")
    second = client.submit("echo", {"data": 2}, id="same")
    with pytest.raises(BadInput, match="in use"):
        second.result(5)
    worker.hold.set()
    assert first.result(5).outputs == {"data": 1}


@pytest.mark.parametrize(
    "bad",
    [
        lambda c: c.run("echo", {"data": object()}),
        lambda c: c.run("echo", {"data": {1: 2}}),
        lambda c: c.index_image(b"p", metadata={1: 2}),
        lambda c: c.run("no such name!", {}),
        lambda c: c.submit("echo", {}, id="a b"),
        lambda c: c.submit("echo", {}, reply_ttl_ms=1),
        lambda c: c.embed_text("\ud800"),
    ],
)
def test_what_cannot_travel_is_bad_input_at_once(client, bad):
    with pytest.raises(RequestFailed) as caught:
        bad(client)
    assert caught.value.code is ErrorCode.BAD_REQUEST


def test_results_do_not_stay_in_the_inbox(client, worker, redis_client):
    list(client.map(requests.echo(n) for n in range(100)))
    inbox = client._backend.inbox_key
    wait_until(lambda: redis_client.llen(inbox) == 0, 5, "the inbox to be cut off")
