"""Wrong use: what a client says to it, and that it says it at once."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress

import pytest

from clipfleet.producer import AsyncClient, Cancelled, Client, QueueFull, Unavailable, requests
from clipfleet.producer.aio.job import AsyncJob
from clipfleet.producer.testing import FakeAsyncClient, FakeClient
from clipfleet.producer.threads.job import Job
from clipfleet.schemas.keys import Lane
from support.redis_server import free_port

CLOSED = "this client is closed"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": None}, "url is a str such as 'redis://localhost:6379', not NoneType"),
        ({"url": b"redis://localhost"}, "url is a str"),
        ({"queue": None}, "queue is a str such as 'clip', not NoneType"),
        ({"prefix": 5}, "prefix is a str such as 'clipfleet', not int"),
    ],
)
def test_a_setting_of_another_type_is_a_type_error_that_says_what_to_write(kind, settings, says):
    with pytest.raises(TypeError, match=says):
        kind(**settings)


@pytest.mark.parametrize("source", ["ab", b"ab", 5, None, requests.echo(1)])
def test_a_map_over_no_iterable_of_requests_is_a_type_error_before_the_first_item(source):
    with FakeClient() as client:
        for name in ("map", "map_with_request"):
            with pytest.raises(TypeError, match=r"an iterable of requests.*requests\.embed_text"):
                getattr(client, name)(source)
        assert client.fleet.requests == []


def test_a_map_over_an_item_that_is_no_request_is_a_type_error():
    with FakeClient() as client, pytest.raises(TypeError, match=r"requests\.embed_text"):
        list(client.map([requests.echo(1), "a"]))

    async def main():
        async with FakeAsyncClient() as client:
            with pytest.raises(TypeError, match="an iterable of requests"):
                [result async for result in client.map("ab")]
            with pytest.raises(TypeError, match=r"requests\.embed_text"):
                [result async for result in client.map([requests.echo(1), "a"])]

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [None, 5, {"text": "a"}])
def test_a_call_of_no_request_is_a_type_error(wrong):
    with FakeClient() as client:
        for method in (client.call, client.submit):
            with pytest.raises(TypeError, match=r"requests\.embed_text"):
                method(wrong)
        with pytest.raises(TypeError, match="inputs is a mapping"):
            client.submit("echo", "x")
        with pytest.raises(TypeError, match="a timeout is a number of seconds, not str"):
            client.embed_text("a", timeout="3")


def test_a_map_with_a_request_that_cannot_travel_fails_that_item_alone():
    wrong = [requests.echo({1: 2}), requests.index_image(b"p", metadata={1: 2}), requests.echo(b"x" * (64 << 20))]
    with FakeClient() as client:
        first, *failed = client.map([requests.echo(1), *wrong])
        assert first.ok
        assert [result.error.code for result in failed] == ["bad_request", "bad_request", "too_large"]
        assert len(client.fleet.requests) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.embed_text("a"),
        lambda client: client.submit("echo", {}),
        lambda client: client.job("a"),
        lambda client: list(client.map([requests.echo(1)])),
        lambda client: client.__enter__(),
    ],
)
@pytest.mark.parametrize("used", [False, True])
def test_a_closed_client_says_so_whatever_is_asked_of_it(use, used):
    client = FakeClient()
    if used:
        client.embed_text("a")
    client.close()
    with pytest.raises(RuntimeError, match=CLOSED):
        use(client)
    client.close()


def test_a_closed_async_client_says_so_too():
    async def main():
        client = FakeAsyncClient()
        await client.aclose()
        with pytest.raises(RuntimeError, match=CLOSED):
            await client.embed_text("a")
        with pytest.raises(RuntimeError, match=CLOSED):
            await client.__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_where_no_redis_listens_a_call_is_unavailable_within_about_a_second(host):
    with Client(f"redis://{host}:{free_port()}") as client:
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"cannot be reached: .*: connection refused$"):
            client.embed_text("a")
        assert time.monotonic() - began < 3.0  # 5 s and more otherwise; the machine may be busy


def test_a_job_of_a_closed_client_has_ended_and_bears_being_cancelled(tmp_path):
    client = Client(f"unix://{tmp_path}/none", wait_for_worker=True, io_timeout=0.2)
    job, under_a_key = client.submit("echo", {}), client.job("a")
    client.close()
    job.cancel()
    with pytest.raises(Unavailable, match="the client was closed"):
        job.result()
    with pytest.raises(RuntimeError, match=CLOSED):
        under_a_key.cancel()


def test_what_is_handed_over_just_after_the_end_is_refused_each_time_and_leaves_nobody_waiting(tmp_path):
    # Given calls that had found the client open
    client = Client(f"unix://{tmp_path}/none", wait_for_worker=True, io_timeout=0.2)
    backend, now = client._running(), time.monotonic()
    late = [Job(client, backend, f"late{one}", Lane.INTERACTIVE, b"", now, now + 60, True) for one in range(3)]
    # When it closes before they hand over what they ask
    client.close()
    for job in late:
        with pytest.raises(RuntimeError, match=CLOSED):
            backend.add(job)
    # Then each has ended
    assert [job.done() for job in late] == [True] * 3


def kept():
    return [one for one in gc.get_objects() if isinstance(one, Job | AsyncJob | requests.NewRequest)]


@pytest.fixture
def without_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_a_call_that_failed_leaves_nothing_of_its_picture_until_cycles_are_looked_for():
    with Client(f"redis://127.0.0.1:{free_port()}") as client:
        before = len(kept())
        with suppress(Unavailable):
            client.embed_image(b"a picture")
        with suppress(Unavailable):
            client.submit("echo", {"data": 1}).accepted()
        assert len(kept()) == before


@pytest.mark.usefixtures("without_collection")
def test_an_async_call_that_failed_leaves_nothing_either():
    async def main():
        async with AsyncClient(f"redis://127.0.0.1:{free_port()}") as client:
            before = len(kept())
            with suppress(Unavailable):
                await client.embed_image(b"a picture")
            with suppress(Unavailable):
                await client.submit("echo", {"data": 1}).accepted()
            assert len(kept()) == before

    asyncio.run(main())


def test_given_too_many_requests_in_one_turn_of_a_loop_then_the_next_is_refused_and_all_can_be_cancelled():
    async def main():
        async with AsyncClient(f"redis://127.0.0.1:{free_port()}", max_unanswered=2) as client:
            # Given two that the loop has had no turn to take over
            jobs = [client.submit("echo", {"data": number}) for number in range(2)]
            # When there is one more, then it is refused
            with pytest.raises(QueueFull, match="2 requests unanswered"):
                client.submit("echo", {"data": 2})
            # And a cancel reaches those that were handed over before it
            for job in jobs:
                job.cancel()
            for job in jobs:
                with pytest.raises(Cancelled):
                    await job
            # And then there is room again
            client.submit("echo", {"data": 3}).cancel()

    asyncio.run(main())
