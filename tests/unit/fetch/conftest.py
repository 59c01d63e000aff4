"""A server that answers as each test tells it."""

from __future__ import annotations

import pytest

from support.http_server import Server


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
