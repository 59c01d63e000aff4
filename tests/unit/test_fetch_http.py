"""Fetching against real servers that misbehave in every way that we thought of."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import tracemalloc
import zlib
from pathlib import Path

import pytest

from clipfleet.operators import FetchLimits, UrlFetcher
from clipfleet.schemas.errors import RequestFailed

BODY = b"\x89PNG picture"


class Server:
    """Answers each connection with ``handle(connection, request)`` in a thread of its own."""

    def __init__(self, handle, *, host="127.0.0.1", port=0, context=None):
        self.handle, self.context = handle, context
        self.requests, self.ended = [], []
        self.socket = socket.create_server((host, port))
        self.port = self.socket.getsockname()[1]
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _serve(self, connection):
        connection.settimeout(10)
        with contextlib.suppress(OSError), self._secured(connection) as secured:
            request = b""
            while b"\r\n\r\n" not in request and (chunk := secured.recv(65536)):
                request += chunk
            self.requests.append(request.decode("latin-1"))
            self.handle(secured, request)
            with contextlib.suppress(OSError):
                secured.shutdown(socket.SHUT_WR)

    def _secured(self, connection):
        return connection if self.context is None else self.context.wrap_socket(connection, server_side=True)

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()


@pytest.fixture
def serve():
    servers = []

    def start(answer, **options):
        handle = answer if callable(answer) else lambda connection, _: connection.sendall(answer)
        servers.append(Server(handle, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def response(body=BODY, status="200 OK", **headers):
    lines = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def fetcher(*servers, resolve=None, allowed=None, context=None, **limits):
    ports = frozenset(server.port for server in servers) | {80, 443}
    return UrlFetcher(
        FetchLimits(ports=ports, **{"total_s": 5.0, **limits}),
        enabled=True,
        resolve=resolve or (lambda _host, _port: ["127.0.0.1"]),
        allowed=allowed or (lambda _address: True),
        context=context,
    )


def failure_of(urls, url, **options):
    with pytest.raises(RequestFailed) as failure:
        urls.read(url, **options)
    return failure.value


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


def redirect(location, status="302 Found"):
    return response(b"", status, Location=location)


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


def _trickle(piece, first=b""):
    def handle(connection, _):
        connection.sendall(first)
        stop = time.monotonic() + 8
        gone = threading.Event()
        while time.monotonic() < stop:
            connection.sendall(piece)
            gone.wait(0.02)

    return handle


def _silent(connection, _):
    connection.recv(1)


@pytest.mark.parametrize(
    "handle",
    [
        _trickle(b"H"),
        _trickle(b"X-Slow: 1\r\n", b"HTTP/1.1 200 OK\r\n"),
        _trickle(b"HTTP/1.1 100 Continue\r\n\r\n"),
        _trickle(b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
        _trickle(b"1\r\nx\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
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
    server = serve(_trickle(b"H"))
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


def gzipped(body):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()


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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        assert "CI" not in os.environ, "openssl is needed to make a certificate"
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=pictures.test", "-addext", "subjectAltName=DNS:pictures.test", "-out", made[0],
         "-keyout", made[1]],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return made


def _server_context(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def test_given_https_then_the_name_is_verified_though_the_address_is_pinned(serve, certificate):
    server = serve(response(), context=_server_context(certificate))
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    urls = fetcher(server, context=trusting)
    assert urls.read(f"https://pictures.test:{server.port}/") == BODY
    wrong = failure_of(urls, f"https://other.test:{server.port}/")
    assert (wrong.code, wrong.retryable) == ("fetch_failed", False)
    assert "certificate" in wrong.message


def test_given_a_certificate_that_nobody_trusts_then_nothing_is_asked(serve, certificate):
    server = serve(response(), context=_server_context(certificate))
    failure = failure_of(fetcher(server), f"https://pictures.test:{server.port}/")
    assert (failure.code, failure.retryable) == ("fetch_failed", False)
    assert server.requests == []


def test_given_a_handshake_that_never_ends_then_the_whole_time_counts(serve):
    server = serve(_trickle(b"\x16"))
    server.handle = lambda *_: None
    stalled = socket.create_server(("127.0.0.1", 0))
    urls = fetcher(server, total_s=0.3)
    urls._limits = FetchLimits(total_s=0.3, ports=frozenset({stalled.getsockname()[1]}))
    start = time.monotonic()
    with stalled:
        assert failure_of(urls, f"https://e.test:{stalled.getsockname()[1]}/").code == "fetch_failed"
    assert time.monotonic() - start < 3


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
