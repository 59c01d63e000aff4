"""The types that users of the clients see, checked by mypy; pytest runs the same lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from clipfleet.producer import AsyncClient, AsyncJob, Client, Hit, Job, NewRequest, Result, Vector, requests
from clipfleet.producer.testing import FakeAsyncClient, FakeClient


def similar(client: Client, text: str) -> Vector:
    return client.embed_text(text).vector


def test_the_client_gives_results() -> None:
    client = FakeClient()
    assert_type(client.embed_text("a"), Result)
    assert_type(client.run("echo", {"data": 1}), Result)
    assert_type(client.submit("echo", {"data": 1}), Job)
    assert_type(client.submit(requests.echo(1)).result(1.0), Result)
    assert_type(client.submit(requests.echo(1)).accepted(), Job)
    assert_type(similar(client, "a"), Vector)
    results = client.map([requests.echo(1)])
    assert_type(results, Iterator[Result])
    pairs = client.map_with_request(requests.echo(n) for n in range(2))
    assert_type(next(pairs), tuple[NewRequest, Result])


def hits(result: Result) -> list[Hit]:
    return result.hits


def test_the_async_client_gives_awaitables_of_the_same() -> None:
    async def main(client: AsyncClient) -> None:
        assert_type(await client.embed_text("a"), Result)
        both = await asyncio.gather(client.embed_text("a"), client.embed_image(b"b"))
        assert_type(both, tuple[Result, Result])
        job = client.submit("echo", {"data": 1})
        assert_type(job, AsyncJob)
        assert_type(await job, Result)
        results = client.map([requests.echo(1)])
        assert_type(results, AsyncIterator[Result])
        assert [result.ok async for result in results] == [True]

    asyncio.run(main(FakeAsyncClient()))
