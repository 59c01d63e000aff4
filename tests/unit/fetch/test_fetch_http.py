"""Fetching against real servers that misbehave in every way that we thought of."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest

from clipfleet.operators import FetchLimits
from support.http_server import BODY, failure_of, fetcher, gzipped, redirect, response


def test_given_a_picture_then_its_bytes_come_back_and_the_request_is_plain(serve, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = serve(response(Content_Type="text/html"))
    assert fetcher(server).read(f"http://pictures.test:{server.port}/a bé.jpg?q=1") == BODY
    (request,) = server.requests
    first, *headers = request.split("\r\n")
    assert first == "GET /a%20b%C3%A9.jpg?q=1 HTTP/1.1"
    assert f"Host: pictures.test:{server.port}" in headers
    assert not any(line.lower().startswith(("cookie", "authorization", "referer")) for line in headers)


def test_given_the_usual_port_then_host_does_not_name_it(serve):
    server = serve(response())
    original = socket.create_connection
    urls = fetcher(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.create_connection", lambda where, **kw: original(("127.0.0.1", server.port), **kw))
        assert urls.read("http://pictures.test/a.jpg") == BODY
    assert "Host: pictures.test\r\n" in server.requests[0]


def test_given_a_name_that_resolves_elsewhere_the_second_time_then_only_the_checked_address_is_used(serve):
    inner = serve(response(b"inner secret"), host="127.0.0.2")
    outer = serve(response(), host="127.0.0.1", port=inner.port)
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    urls = fetcher(
        outer,
        resolve=lambda *_: next(answers),
        allowed=lambda address: address == ipaddress.ip_address("127.0.0.1"),
    )
    url = f"http://rebinding.test:{outer.port}/"
    assert urls.read(url) == BODY
    assert failure_of(urls, url).code == "fetch_forbidden"
    assert inner.requests == []


def test_given_a_first_address_that_refuses_then_the_next_is_tried(serve):
    server = serve(response(), host="127.0.0.3")
    urls = fetcher(server, resolve=lambda *_: ["127.0.0.4", "127.0.0.3"])
    assert urls.read(f"http://two.test:{server.port}/") == BODY


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_given_a_redirect_then_it_is_followed(serve, status):
    def handle(connection, request):
        connection.sendall(response() if b"GET /b" in request else redirect("/b?x=1", status))

    server = serve(handle)
    assert fetcher(server).read(f"http://e.test:{server.port}/a") == BODY
    assert server.requests[1].startswith("GET /b?x=1 ")


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://127.0.0.1/", "fetch_forbidden"),
        ("http://inner.test/", "fetch_forbidden"),
        ("//inner.test/", "fetch_forbidden"),
        ("http://e.test:22/", "fetch_forbidden"),
        ("http://u:p@e.test/", "fetch_forbidden"),
        ("file:///etc/passwd", "fetch_forbidden"),
        ("http://[::1/", "fetch_failed"),
        ("http://e .test/", "fetch_failed"),
    ],
)
def test_given_a_redirect_inwards_then_it_is_checked_like_the_first(serve, location, code):
    server = serve(redirect(location))
    outside = {"e.test": "127.0.0.5"}
    urls = fetcher(
        server,
        resolve=lambda host, _: [outside.get(host, "127.0.0.1")],
        allowed=lambda address: str(address) == "127.0.0.5",
    )
    server_5 = serve(redirect(location), host="127.0.0.5", port=server.port)
    assert failure_of(urls, f"http://e.test:{server.port}/").code == code
    assert len(server_5.requests) == 1
    assert server.requests == []


def test_given_redirects_without_end_then_it_gives_up(serve):
    server = serve(redirect("/again"))
    failure = failure_of(fetcher(server, max_redirects=3), f"http://e.test:{server.port}/")
    assert (failure.code, failure.retryable) == ("fetch_failed", False)
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("status", "retryable"),
    [("404 Not Found", False), ("403 Forbidden", False), ("410 Gone", False), ("206 Partial", False),
     ("204 None", False), ("429 Too Many", True), ("408 Timeout", True), ("500 Oops", True), ("503 Busy", True)],
)  # fmt: skip
def test_given_a_status_then_it_says_whether_a_retry_can_help(serve, status, retryable):
    server = serve(response(b"", status))
    failure = failure_of(fetcher(server), f"http://e.test:{server.port}/")
    assert (failure.code, failure.retryable) == ("fetch_failed", retryable)


@pytest.mark.parametrize(
    ("answer", "retryable"),
    [
        (response(gzipped(BODY)[:-9], Content_Encoding="gzip"), True),
        (response(b"not gzip", Content_Encoding="gzip"), True),
        (response(BODY, Content_Encoding="br"), False),
        (response(BODY, Content_Length="1000"), True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", True),
        (b"", True),
        (b"SSH-2.0-OpenSSH_9.2\r\n", True),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n", True),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", True),
        (b"HTTP/1.1 " + b"9" * 100_000, True),
    ],
    ids=["gzip cut", "no gzip", "brotli", "short", "chunk cut", "no chunk", "nothing", "ssh", "headers", "long header",
         "long status"],
)  # fmt: skip
def test_given_an_answer_that_breaks_off_or_is_no_http_then_it_is_fetch_failed(serve, answer, retryable):
    server = serve(answer)
    failure = failure_of(fetcher(server), f"http://e.test:{server.port}/")
    assert (failure.code, failure.retryable) == ("fetch_failed", retryable)


@pytest.mark.parametrize(
    "answer",
    [
        response(Connection="close"),
        response(Connection="keep-alive"),
        response(Content_Length=None),
        response().replace(b"HTTP/1.1", b"HTTP/1.0"),
        response(Content_Length=None, Connection="close").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["close", "keep-alive", "no length", "1.0", "1.0 without length"],
)
def test_given_any_way_to_end_a_body_then_it_is_read_whole(serve, answer):
    server = serve(answer)
    assert fetcher(server).read(f"http://e.test:{server.port}/") == BODY


def test_given_chunks_then_they_are_joined(serve):
    server = serve(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    assert fetcher(server).read(f"http://e.test:{server.port}/") == b"abc"


def test_given_a_host_that_is_not_there_or_not_found_then_a_retry_may_help():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        urls = fetcher(max_redirects=0)
        urls._limits = FetchLimits(ports=frozenset({unused.getsockname()[1]}))
        refused = failure_of(urls, f"http://e.test:{unused.getsockname()[1]}/")
    assert (refused.code, refused.retryable) == ("fetch_failed", True)

    def not_found(*_):
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    for resolve in (not_found, lambda *_: [], lambda *_: ["no address"]):
        assert failure_of(fetcher(resolve=resolve), "http://missing.test/").code == "fetch_failed"


def test_given_many_fetches_good_and_bad_then_no_descriptor_is_left_open(serve):
    server = serve(response())
    urls = fetcher(server)
    url = f"http://e.test:{server.port}/"
    urls.read(url)

    def open_now():
        links = (fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
        return {name for link in links if (name := str(link.readlink())).startswith("socket:")}

    before = open_now()
    for _ in range(10):
        urls.read(url)
        failure_of(fetcher(server, max_bytes=1), url)
    server.close()
    assert open_now() <= before
