"""The client for asyncio; what it shares with the other one is tested there."""

from __future__ import annotations

import asyncio
import time

import pytest

from clipfleet.producer import AsyncClient, Cancelled, Expired, ModelFailed, QueueFull, Unavailable, requests
from clipfleet.producer.core.inbox import Inbox
from support.raw_worker import toy_vector
from support.waiting import quickest, wait_until


@pytest.fixture
def run(redis_server, keys):
    """Run ``scenario(client)`` with a client on a loop of its own."""

    def run_scenario(scenario, **options):
        async def main():
            async with AsyncClient(redis_server.url, queue=keys.queue, **({"timeout": 10} | options)) as client:
                return await scenario(client)

        return asyncio.run(main())

    return run_scenario


async def until(predicate, description):
    deadline = time.monotonic() + 5
    while not predicate():
        assert time.monotonic() < deadline, f"waited in vain for {description}"
        await asyncio.sleep(0.005)


def test_each_method_gives_its_result(run, worker, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"picture")

    async def scenario(client):
        assert (await client.embed_image(file)).vector.buffer == toy_vector(b"picture")["data"]
        assert (await client.search(text="x")).hits[0].score == 0.5
        assert (await client.run("echo", {"data": 1})).outputs == {"data": 1}
        job = client.submit("echo", {"data": 2})
        assert (await job).outputs == {"data": 2}
        assert job.done()
        kept = await client.submit("echo", {"data": 3}, reply="key").accepted()
        assert (await client.job(kept.id)).outputs == {"data": 3}
        with pytest.raises(TimeoutError):
            await client.job("never-was").result(0.05)

    run(scenario)


def test_a_request_with_a_key_ends_by_its_deadline_too(run, worker):
    worker.hold.clear()

    async def scenario(client):
        with pytest.raises(Expired):
            await client.submit("echo", {"data": 1}, reply="key", timeout=0.2)
        worker.hold.set()

    run(scenario)


def test_what_is_gathered_goes_out_in_few_calls(run, worker, redis_client):
    async def scenario(client):
        await client.run("echo", {"data": 0})
        redis_client.config_resetstat()
        worker.hold.clear()
        jobs = [client.submit("echo", {"data": n}) for n in range(1000)]
        await asyncio.gather(*(job.accepted() for job in jobs))
        calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
        worker.hold.set()
        assert [r.outputs["data"] for r in await asyncio.gather(*jobs)] == list(range(1000))
        return calls

    assert run(scenario) <= 6  # 256 a call, and a heartbeat of the worker


def test_a_cancelled_await_cancels_the_request_and_harms_no_connection(run, worker, redis_client, keys):
    async def scenario(client):
        await client.run("echo", {"data": 0})
        connections = {c["id"] for c in redis_client.client_list() if c["name"] == "clipfleet-producer"}
        worker.hold.clear()
        for count in range(1, 21):
            call = asyncio.ensure_future(client.run("echo", {"data": "unwanted"}))
            await until(lambda count=count: redis_client.xlen(keys.lanes[0]) == count, "its admission")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: len(redis_client.keys(keys.cancel("*"))) == 20, "the cancel keys")
        worker.hold.set()
        answers = await asyncio.gather(*(client.run("echo", {"data": n}) for n in range(100)))
        assert [a.outputs["data"] for a in answers] == list(range(100))
        after = {c["id"] for c in redis_client.client_list() if c["name"] == "clipfleet-producer"}
        assert after == connections

    run(scenario)


def test_cancelling_the_await_of_a_job_leaves_the_job_alone(run, worker):
    async def scenario(client):
        worker.hold.clear()
        job = client.submit("echo", {"data": 1})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await job
        worker.hold.set()
        assert (await job).ok
        worker.hold.clear()
        other = client.submit("echo", {"data": 1})
        other.cancel()
        with pytest.raises(Cancelled):
            await other
        worker.hold.set()

    run(scenario)


@pytest.mark.parametrize("ordered", [True, False])
def test_map_takes_async_sources(run, worker, ordered):
    async def source():
        for number in range(500):
            await asyncio.sleep(0)  # the loop takes a turn between any two
            yield requests.echo(number, tag=number)

    async def scenario(client):
        return [
            (request.tag, result.outputs["data"])
            async for request, result in client.map_with_request(source(), max_in_flight=50, ordered=ordered)
        ]

    pairs = run(scenario)
    assert sorted(pairs) == [(n, n) for n in range(500)]
    assert not ordered or pairs == sorted(pairs)


def test_map_gives_results_while_its_source_waits_for_more(run, worker):
    async def scenario(client):
        seen = asyncio.Event()

        async def source():
            yield requests.echo(1)
            await seen.wait()
            yield requests.echo(2)

        results = []
        async for result in client.map(source()):
            results.append(result.outputs["data"])
            seen.set()
        return results

    assert run(scenario) == [1, 2]


def test_map_waits_while_the_queue_is_full(run, worker, redis_client, keys):
    redis_client.hset(keys.fleet, mapping={"capacity": 5, "rate": 1000})

    async def scenario(client):
        return [r.outputs["data"] async for r in client.map((requests.echo(n) for n in range(200)), max_in_flight=64)]

    assert run(scenario) == list(range(200))


def test_map_raises_what_its_source_raises_after_what_came_before(run, worker):
    async def scenario(client):
        async def source():
            yield requests.echo(1)
            raise LookupError("the source broke")

        results = client.map(source())
        assert (await anext(results)).outputs == {"data": 1}
        with pytest.raises(LookupError, match="the source broke"):
            await anext(results)

    run(scenario)


def test_leaving_a_map_early_leaves_no_task_behind(run, worker):
    async def scenario(client):
        stream = client.map(requests.echo(n) for n in range(1000))
        async for _ in stream:
            break
        await stream.aclose()
        await client.run("echo", {"data": 1})
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert run(scenario) == []


def test_refusals_carry_a_time_to_come_back(run, redis_client, keys, leftovers):
    leftovers.expected("no worker takes the one that is in")
    redis_client.hset(keys.fleet, mapping={"capacity": 1})

    async def scenario(client):
        admitted = (client.submit("echo", {"data": n}).accepted() for n in range(5))
        results = await asyncio.gather(*admitted, return_exceptions=True)
        return [type(r) for r in results]

    kinds = run(scenario, wait_for_worker=True)
    assert kinds.count(QueueFull) == 4


def test_without_a_worker_a_call_is_unavailable_within_a_second(run):
    async def scenario(client):
        with pytest.raises(Unavailable, match="no worker"):
            await client.embed_text("x")

    assert quickest(lambda: run(scenario)) < 1


def test_a_client_belongs_to_one_loop(run, worker):
    async def scenario(client):
        assert (await client.run("echo", {"data": 1})).ok
        with pytest.raises(RuntimeError, match="the event loop that it was first used on"):
            await asyncio.to_thread(asyncio.run, client.run("echo", {"data": 2}))

    run(scenario)


def test_a_mistake_inside_ends_requests_instead_of_hanging_them(run, worker, monkeypatch):
    def mistaken(*_, **__):
        raise ZeroDivisionError("a mistake")

    async def scenario(client):
        monkeypatch.setattr(Inbox, "commands", mistaken)
        with pytest.raises(ModelFailed, match="internal: ZeroDivisionError: a mistake"):
            await client.run("echo", {"data": 1})
        monkeypatch.undo()
        assert (await client.run("echo", {"data": 2})).ok

    run(scenario)


def test_map_gives_results_while_a_plain_source_waits_for_them(run, worker):
    given = []

    def source():
        for number in range(5):
            wait_until(lambda number=number: len(given) == number, 10, "the result of the one before")
            yield requests.echo(number)
        raise KeyError("mine")

    async def take(client):
        async for result in client.map(source(), source_waits=True):
            given.append(result.outputs["data"])  # noqa: PERF401 - the source looks at it

    with pytest.raises(KeyError, match="mine"):
        run(take)
    assert given == list(range(5))
