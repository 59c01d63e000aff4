"""The doubles behave as the clients do."""

from __future__ import annotations

import asyncio

import pytest

from clipfleet.producer import BadInput, Cancelled, QueueFull, Unavailable, requests
from clipfleet.producer.testing import FakeAsyncClient, FakeClient, InMemoryFleet
from clipfleet.schemas.errors import ErrorCode, error_for


def test_the_built_in_pipelines_answer():
    client = FakeClient()
    assert client.run("echo", {"data": 1}).outputs == {"data": 1}
    assert client.embed_text("a").vector == client.embed_text("a").vector != client.embed_text("b").vector
    assert client.embed_image(b"a").vector.norm() == pytest.approx(1, abs=1e-6)
    with pytest.raises(BadInput, match="unknown_pipeline"):
        client.search("a")


def test_handlers_see_the_decoded_request_and_may_fail():
    fleet = InMemoryFleet()
    fleet.on("search", lambda request: {"hits": [{"id": request.inputs["text"], "score": 1.0, "metadata": {}}]})

    def broken(_):
        raise error_for(ErrorCode.CORRUPT_IMAGE, "cut off")

    fleet.on("embed_image", broken)
    client = FakeClient(fleet)
    assert client.search("x").hits[0].id == "x"
    with pytest.raises(BadInput, match="cut off"):
        client.embed_image(b"p")
    assert [request.pipeline for request in fleet.requests] == ["search", "embed_image"]


def test_what_does_not_survive_the_wire_does_not_survive_here():
    fleet = InMemoryFleet()
    fleet.on("tuples", lambda _: {"a": (1, 2)})
    client = FakeClient(fleet)
    assert client.run("tuples", {}).outputs == {"a": [1, 2]}
    with pytest.raises(BadInput, match="bad_request"):
        client.run("echo", {"data": object()})


def test_a_paused_fleet_fills_up_and_resumes():
    fleet = InMemoryFleet(capacity=2, retry_after=0.5)
    client = FakeClient(fleet)
    fleet.pause()
    jobs = [client.submit("echo", {"data": n}).accepted() for n in range(2)]
    with pytest.raises(QueueFull) as caught:
        client.run("echo", {"data": 2})
    assert caught.value.retry_after == 0.5
    jobs[1].cancel()
    assert not jobs[0].done()
    with pytest.raises(TimeoutError):
        jobs[0].result(0.01)
    fleet.resume()
    assert jobs[0].result().outputs == {"data": 0}
    with pytest.raises(Cancelled):
        jobs[1].result()
    fleet.alive = False
    with pytest.raises(Unavailable, match="no worker"):
        client.run("echo", {"data": 3})


def test_map_and_jobs_under_keys_work():
    client = FakeClient()
    pairs = list(client.map_with_request(requests.echo(n, tag=n) for n in range(1000)))
    assert all(request.tag == result.outputs["data"] for request, result in pairs)
    job = client.submit("echo", {"data": 1}, reply="key")
    assert client.job(job.id).result().outputs == {"data": 1}
    with pytest.raises(TimeoutError):
        client.job("never-was").result(0.01)


def test_the_async_double_answers_too():
    async def main():
        fleet = InMemoryFleet()
        async with FakeAsyncClient(fleet) as client:
            assert (await client.embed_text("a")).ok
            assert [r.outputs["data"] async for r in client.map(requests.echo(n) for n in range(300))] == list(
                range(300)
            )
            fleet.pause()
            job = client.submit("echo", {"data": 1})
            asyncio.get_running_loop().call_later(0.01, fleet.resume)
            assert (await job).outputs == {"data": 1}
            assert (await client.job(job.id)).outputs == {"data": 1}

    asyncio.run(main())
