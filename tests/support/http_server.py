"""A server that answers as it is told, and a fetcher that may reach it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import zlib

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


def gzipped(body):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()


def redirect(location, status="302 Found"):
    return response(b"", status, Location=location)


def trickle(piece, first=b""):
    def handle(connection, _):
        connection.sendall(first)
        stop = time.monotonic() + 8
        gone = threading.Event()
        while time.monotonic() < stop:
            connection.sendall(piece)
            gone.wait(0.02)

    return handle
