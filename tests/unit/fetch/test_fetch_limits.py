"""Fetching has bounds of time and size, whatever the server does."""

from __future__ import annotations

import contextlib
import threading
import time
import tracemalloc

import pytest

from support.http_server import BODY, failure_of, fetcher, gzipped, redirect, response, trickle


def _silent(connection, _):
    connection.recv(1)


@pytest.mark.parametrize(
    "handle",
    [
        trickle(b"H"),
        trickle(b"X-Slow: 1\r\n", b"HTTP/1.1 200 OK\r\n"),
        trickle(b"HTTP/1.1 100 Continue\r\n\r\n"),
        trickle(b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
        trickle(b"1\r\nx\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        _silent,
    ],
    ids=["status line", "headers", "continue", "body", "chunks", "silence"],
)
def test_given_a_server_that_sends_drop_by_drop_then_the_whole_time_counts(serve, handle):
    server = serve(handle)
    start = time.monotonic()
    failure = failure_of(fetcher(server, total_s=0.4), f"http://e.test:{server.port}/")
    assert failure.code == "fetch_failed"
    assert time.monotonic() - start < 3


def test_given_redirects_each_a_little_slow_then_the_whole_time_counts(serve):
    waiting = threading.Event()

    def handle(connection, _):
        waiting.wait(0.15)
        connection.sendall(redirect("/next"))

    server = serve(handle)
    start = time.monotonic()
    failure = failure_of(fetcher(server, total_s=0.4, max_redirects=100), f"http://e.test:{server.port}/")
    assert failure.code == "fetch_failed"
    assert failure.retryable
    assert time.monotonic() - start < 3


def test_given_a_look_up_that_hangs_then_the_whole_time_counts_and_hung_ones_have_a_bound():
    release = threading.Event()

    def hang(*_):
        release.wait(30)
        return ["127.0.0.1"]

    urls = fetcher(resolve=hang, total_s=0.2, max_lookups=2)
    start = time.monotonic()
    try:
        for _ in range(4):
            assert failure_of(urls, "http://slow.test/").code == "fetch_failed"
        lookups = [thread for thread in threading.enumerate() if thread.name == "clipfleet-lookup"]
        assert len(lookups) == 2
    finally:
        release.set()
    assert time.monotonic() - start < 5
    for thread in lookups:
        thread.join(5)


def test_given_less_time_than_the_limits_give_then_it_counts(serve):
    server = serve(trickle(b"H"))
    start = time.monotonic()
    assert failure_of(fetcher(server), f"http://e.test:{server.port}/", timeout_s=0.2).code == "fetch_failed"
    assert time.monotonic() - start < 3


def test_given_no_time_left_then_nothing_is_connected_to(serve):
    server = serve(response())
    assert failure_of(fetcher(server), f"http://e.test:{server.port}/", timeout_s=0.0).code == "fetch_failed"
    assert server.requests == []


def _endless(first):
    def handle(connection, _):
        connection.sendall(first)
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b"x" * 65536)

    return handle


def test_given_a_body_without_end_then_it_is_too_large(serve):
    server = serve(_endless(b"HTTP/1.1 200 OK\r\n\r\n"))
    assert failure_of(fetcher(server, max_bytes=1_000_000), f"http://e.test:{server.port}/").code == "too_large"


def test_given_a_declared_length_above_the_limit_then_nothing_is_read(serve):
    server = serve(response(b"", Content_Length="1000001"))
    assert failure_of(fetcher(server, max_bytes=1_000_000), f"http://e.test:{server.port}/").code == "too_large"


def test_given_a_body_of_exactly_the_limit_then_it_passes(serve):
    server = serve(response(b"x" * 1000))
    url = f"http://e.test:{server.port}/"
    assert len(fetcher(server, max_bytes=1000).read(url)) == 1000
    assert failure_of(fetcher(server, max_bytes=999), url).code == "too_large"


def test_given_a_packed_body_that_nobody_asked_for_then_it_is_unpacked(serve):
    server = serve(response(gzipped(BODY), Content_Encoding="gzip"))
    assert fetcher(server).read(f"http://e.test:{server.port}/") == BODY
    assert "Accept-Encoding: identity" in server.requests[0]


def test_given_a_packed_bomb_then_unpacked_bytes_count(serve):
    bomb = gzipped(bytes(50_000_000))
    assert len(bomb) < 100_000
    server = serve(response(bomb, Content_Encoding="gzip"))
    urls = fetcher(server, max_bytes=1_000_000)
    tracemalloc.start()
    try:
        assert failure_of(urls, f"http://e.test:{server.port}/").code == "too_large"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
