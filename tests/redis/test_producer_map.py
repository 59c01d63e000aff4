"""`map` of the client for threads."""

from __future__ import annotations

import threading

import pytest

from clipfleet.producer import (
    Client,
    ErrorCode,
    requests,
)
from support.raw_worker import RawWorker, answer
from support.waiting import wait_until


def test_map_keeps_the_order_and_turns_failures_into_results(client, worker, tmp_path):
    def source():
        for number in range(300):
            if number % 10 == 3:
                yield requests.run("fail", {"code": "corrupt_image"}, tag=number)
            elif number % 10 == 7:
                yield requests.embed_image(tmp_path / "missing.jpg", tag=number)
            else:
                yield requests.echo(number, tag=number)

    pairs = list(client.map_with_request(source(), max_in_flight=20))
    assert [request.tag for request, _ in pairs] == list(range(300))
    for request, result in pairs:
        expected = {3: ErrorCode.CORRUPT_IMAGE, 7: ErrorCode.FETCH_FAILED}.get(request.tag % 10)
        assert (result.error.code if result.error else None) == expected
        assert result.ok == (expected is None)
    assert "missing.jpg" in str(pairs[7][1].error)


@pytest.mark.parametrize("in_flight", [10, 64])
def test_map_takes_no_more_from_its_source_than_may_be_in_flight(client, worker, in_flight):
    taken = []

    def source():
        for number in range(100):
            taken.append(number)
            yield requests.echo(number)

    results = client.map(source(), max_in_flight=in_flight)
    for count, result in enumerate(results, start=1):
        assert result.ok
        assert len(taken) <= count + in_flight
    assert len(taken) == 100


def test_map_sends_what_it_has_before_it_asks_a_source_that_waits(redis_server, redis_client, keys, client):
    """A source may give the next request only when somebody else has seen the one before."""
    seen = []

    def source():
        for number in range(5):
            yield requests.echo(number)
            wait_until(lambda number=number: number in seen, description="the worker to have it")

    def handler(request):
        seen.append(request.inputs["data"])
        return answer(request)

    with RawWorker(redis_server.url, keys, handler=handler):
        wait_until(lambda: redis_client.zcard(keys.workers), description="a worker's presence")
        assert [result.outputs["data"] for result in client.map(source())] == list(range(5))


@pytest.mark.parametrize("ordered", [True, False])
def test_map_gives_results_while_its_source_waits_for_them(client, worker, ordered):
    """A source whose next request comes when somebody has the result of the one before."""
    given = []

    def source():
        for number in range(5):
            wait_until(lambda number=number: len(given) == number, 10, "the result of the one before")
            yield requests.echo(number)

    results = client.map(source(), ordered=ordered, source_waits=True)
    given.extend(result.outputs["data"] for result in results)
    assert given == list(range(5))


def test_a_map_beside_its_source_raises_what_that_raises_and_closes_it_where_it_runs(client, worker):
    ended = []

    def source(error=None):
        try:
            for number in range(100):
                yield requests.echo(number)
                if error is not None:
                    raise error
        finally:
            ended.append(threading.current_thread().name)

    with pytest.raises(KeyError, match="mine"):
        list(client.map(source(KeyError("mine")), source_waits=True))
    results = client.map(source(), source_waits=True, max_in_flight=4)
    assert next(results).ok
    results.close()
    wait_until(lambda: len(ended) == 2, description="the source to be closed")
    assert set(ended) == {"clipfleet-source"}
    assert [result.outputs["data"] for result in client.map(source(), source_waits=True)] == list(range(100))


@pytest.mark.parametrize("source_waits", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("mistake", ["raises", "no request"])
def test_given_a_source_that_breaks_when_mapped_then_what_it_gave_comes_first(
    redis_server, redis_client, keys, client, source_waits, ordered, mistake
):
    asked = threading.Event()

    def source():
        for number in range(20):
            yield requests.echo(number)
        asked.set()
        if mistake == "raises":
            raise LookupError("the source broke")
        yield "no request"

    def handler(request):
        assert asked.wait(10)  # so that nothing had come when the source broke
        return answer(request)

    with RawWorker(redis_server.url, keys, handler=handler):
        wait_until(lambda: redis_client.zcard(keys.workers), 5, "the worker's presence")
        given = []
        with pytest.raises(LookupError if mistake == "raises" else TypeError):
            given.extend(client.map(source(), ordered=ordered, source_waits=source_waits))
    given = [result.outputs["data"] for result in given]
    assert sorted(given) == list(range(20))
    assert not ordered or given == sorted(given)


def test_given_a_source_that_is_interrupted_when_mapped_then_nothing_is_waited_for(client, redis_server, keys):
    def source():
        yield requests.echo(1)
        raise KeyboardInterrupt

    for source_waits in (False, True):
        # No worker at all: whoever waited for an answer would wait for a second, and be told so.
        with pytest.raises(KeyboardInterrupt):
            list(client.map(source(), source_waits=source_waits))


def test_map_as_completed_does_not_wait_for_the_slow_one(redis_server, redis_client, keys, client):
    slow = threading.Event()

    def handler(request):
        assert request.inputs["data"] != 0 or slow.wait(10)
        return answer(request)

    workers = [RawWorker(redis_server.url, keys, handler=handler, count=1) for _ in range(2)]
    with workers[0], workers[1]:
        wait_until(lambda: redis_client.zcard(keys.workers), 5, "a worker's presence")
        seen = []
        for result in client.map(map(requests.echo, range(50)), ordered=False):
            seen.append(result.outputs["data"])
            if len(seen) == 49:
                slow.set()
    assert seen[-1] == 0
    assert sorted(seen) == list(range(50))


def test_map_waits_while_the_queue_is_full(redis_server, redis_client, keys, worker):
    redis_client.hset(keys.fleet, mapping={"capacity": 5, "rate": 1000})
    with Client(redis_server.url, queue=keys.queue, timeout=20) as client:
        results = list(client.map((requests.echo(n) for n in range(300)), max_in_flight=64, lane="bulk"))
    assert [result.outputs["data"] for result in results] == list(range(300))


def test_leaving_a_map_early_cancels_what_is_under_way(redis_server, redis_client, keys, client):
    gate = threading.Event()

    def handler(request):
        assert request.inputs["data"] == 0 or gate.wait(10)
        return answer(request)

    with RawWorker(redis_server.url, keys, handler=handler, count=1):
        wait_until(lambda: redis_client.zcard(keys.workers), 5, "the worker's presence")
        stream = client.map(requests.echo(number) for number in range(6))
        assert next(stream).outputs == {"data": 0}
        stream.close()
        wait_until(lambda: len(redis_client.keys(keys.cancel("*"))) == 5, 5, "five cancel keys")
        gate.set()
        wait_until(lambda: redis_client.xlen(keys.lanes[0]) == 0, 5, "the queue to drain")
