"""How batches form in a real worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from clipfleet.operators.cores import usable_cores
from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.request import Request
from clipfleet.schemas.result import decode_result
from support.fleet import admit, results
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess


def texts(count: int) -> list[Request]:
    return [Request(f"r{i}", "embed_text", {"text": f"thing number {i}"}) for i in range(count)]


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_backlog_with_slow_decode_runs_in_full_batches(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], count: int
) -> None:
    # Given a backlog, all of it overdue, and a decode that takes 5 ms for each item
    requests = texts(count)
    for start in range(0, count, 500):
        admit(redis_client, keys, requests[start : start + 500], ttl_ms=600_000)
    # When a worker comes (its model is tiny: 50 ms is what a run of a real one takes)
    start_worker(hooks="support.hooks:SlowDecode", max_delay_ms=50, max_batch_size=64)
    found = results(redis_client, keys, [one.id for one in requests], 120)
    # Then it does not run one by one what leaves decode one by one
    weights = [1 / decode_result(raw[0]).notes["batch_size"] for raw in found.values()]
    assert count / sum(weights) >= 0.9 * 64


def test_a_lone_request_waits_for_company_as_long_as_it_was_told(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(max_delay_ms=400)
    admit(redis_client, keys, [Request("warm", "embed_text", {"text": "warm"})])
    results(redis_client, keys, ["warm"])
    admit(redis_client, keys, [Request("lone", "embed_text", {"text": "lone"})])
    timing = decode_result(results(redis_client, keys, ["lone"])["lone"][0]).timing
    # So long since enqueue, and its run; the result says what was waited. (Not twice, however busy the machine is.)
    assert 399 <= timing["age"] - timing["run"] < 2 * 400


def test_without_a_delay_a_lone_request_runs_at_once(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(max_delay_ms=0)
    admit(redis_client, keys, [Request("lone", "embed_text", {"text": "lone"})])
    result = decode_result(results(redis_client, keys, ["lone"])["lone"][0])
    assert result.notes["batch_size"] == 1


def test_bulk_has_its_share_and_no_more_beside_interactive(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a backlog in both lanes, answered into one inbox so that the order can be seen
    inbox = keys.inbox("test.order")
    live = [Request(f"live{i}", "embed_text", {"text": f"live {i}"}, reply_to=inbox) for i in range(448)]
    bulk = [Request(f"bulk{i}", "embed_text", {"text": f"bulk {i}"}, reply_to=inbox) for i in range(448)]
    admit(redis_client, keys, live)
    admit(redis_client, keys, bulk, lane="bulk")
    # When a worker takes batches of 64
    start_worker(max_batch_size=64)
    wait_until(lambda: redis_client.llen(inbox) == 896, 30, "all answers")
    order = [decode_result(raw).id[:4] for raw in redis_client.lrange(inbox, 0, -1)]
    # Then 8 of each 64 were bulk's while both had work (two batches of reading may lie between)
    while_both = order[: order.index("live") + 448]
    assert 448 / 8 * 0.5 <= while_both.count("bulk") <= 448 / 8 + 128
    # and the last live one did not wait for bulk to end
    assert len(order) - order[::-1].index("live") <= 448 + 448 / 7 + 128


def test_a_live_request_is_read_decoded_and_run_before_the_bulk_work_that_a_worker_holds(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker that makes one call at a time, is held in its first and has taken all the bulk work that it may
    worker = start_worker(hooks="support.hooks:Barrier", max_batch_size=16, threads=usable_cores())
    worker.hold("call")
    inbox = keys.inbox("test.order")
    bulk = [Request(f"bulk{i}", "embed_text", {"text": f"bulk {i}"}, reply_to=inbox) for i in range(100)]
    admit(redis_client, keys, bulk, lane="bulk", ttl_ms=600_000)
    worker.reached("call")
    wait_until(lambda: redis_client.xpending(keys.lanes[1], "workers")["pending"] == 32, 20, "two batches held")
    # When a live request comes
    worker.hold("prepare")
    admit(redis_client, keys, [Request("live", "embed_text", {"text": "live"}, reply_to=inbox)])
    # Then it is read although there is no room for bulk, and decoded while the device is busy
    worker.reached("prepare")
    worker.release("prepare")
    worker.release("call")
    wait_until(lambda: redis_client.llen(inbox) == 101, 30, "all answers")
    order = [decode_result(raw).id for raw in redis_client.lrange(inbox, 0, -1)]
    # and of the 32 that are held, no more are answered first than what ran already, and one batch that was launched
    # while it left decode: nothing tells when it has
    assert order.index("live") <= 1 + 16


def test_what_has_one_id_in_both_lanes_is_two_requests(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given two requests that entered their lanes in one millisecond, and a worker that holds both
    worker = start_worker(hooks="support.hooks:Barrier")
    worker.hold("prepare")
    seconds, micros = redis_client.time()
    at = f"{seconds * 1000 + micros // 1000}-0"
    live, bulk = Request("one", "echo", {"data": 1}), Request("two", "embed_text", {"text": "two"})
    redis_client.xadd(keys.lanes[1], {"m": bulk.encode()}, id=at)
    worker.reached("prepare")
    redis_client.xadd(keys.lanes[0], {"m": live.encode()}, id=at)
    # When one of them is settled
    results(redis_client, keys, ["one"])
    wait_until(lambda: not redis_client.xlen(keys.lanes[0]), 10, "one is settled")
    # Then the other one is still its worker's to answer, and is not found forgotten by a look for lost replies
    worker.release("prepare")
    assert decode_result(results(redis_client, keys, ["two"])["two"][0]).ok
    assert "handed back" not in worker.log


def test_what_expired_or_was_cancelled_is_not_run(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    admit(redis_client, keys, texts(1), ttl_ms=1)
    admit(redis_client, keys, [Request("unwanted", "embed_text", {"text": "x"})])
    redis_client.set(keys.cancel("unwanted"), "1", px=60_000)
    expired_at = time.monotonic() + 0.01
    wait_until(lambda: time.monotonic() > expired_at, 1, "the deadline")
    start_worker()
    found = results(redis_client, keys, ["r0", "unwanted"])
    assert decode_result(found["r0"][0]).error.code is ErrorCode.EXPIRED
    assert decode_result(found["unwanted"][0]).error.code is ErrorCode.CANCELLED


def test_bad_requests_are_answered_and_undecodable_ones_buried(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    bad = {
        "blank": Request("blank", "embed_text", {"text": " \u200b\u3000"}),
        "nothing": Request("nothing", "embed_text", {}),
        "unknown": Request("unknown", "embed_video", {}),
        "html": Request("html", "embed_image", {"image": b"<html></html>"}),
        "store": Request("store", "search", {"text": "x"}),
        "url": Request("url", "embed_image", {"image": {"url": "http://example.com/a.jpg"}}),
        "path": Request("path", "embed_image", {"image": {"path": "etc/passwd"}}),
    }
    admit(redis_client, keys, bad.values())
    # and what a stranger may add to the stream by hand
    redis_client.xadd(keys.lanes[0], {"m": b"\xc1 no msgpack"})
    redis_client.xadd(keys.lanes[0], {"x": b"no m"})
    redis_client.xadd(keys.lanes[0], {"m": Request("bare", "echo", {"data": 1}).encode()})
    worker = start_worker()
    found = results(redis_client, keys, [*bad, "bare"])
    codes = {one: decode_result(raw[0]).error.code for one, raw in found.items() if one != "bare"}
    assert codes == {
        "blank": ErrorCode.EMPTY_INPUT,
        "nothing": ErrorCode.BAD_REQUEST,
        "unknown": ErrorCode.UNKNOWN_PIPELINE,
        "html": ErrorCode.UNSUPPORTED_MEDIA,
        "store": ErrorCode.UNKNOWN_PIPELINE,
        "url": ErrorCode.FETCH_FORBIDDEN,
        "path": ErrorCode.FETCH_FORBIDDEN,
    }
    assert decode_result(found["bare"][0]).outputs == {"data": 1}
    wait_until(lambda: redis_client.xlen(keys.dead) == 2, 10, "two dead letters")
    assert worker.process.poll() is None
    redis_client.delete(keys.dead)
