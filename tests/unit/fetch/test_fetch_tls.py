"""Fetching over TLS: the name is verified though the address is pinned."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import time

import pytest

from clipfleet.operators import FetchLimits
from support.http_server import BODY, failure_of, fetcher, response, trickle


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
    server = serve(trickle(b"\x16"))
    server.handle = lambda *_: None
    stalled = socket.create_server(("127.0.0.1", 0))
    urls = fetcher(server, total_s=0.3)
    urls._limits = FetchLimits(total_s=0.3, ports=frozenset({stalled.getsockname()[1]}))
    start = time.monotonic()
    with stalled:
        assert failure_of(urls, f"https://e.test:{stalled.getsockname()[1]}/").code == "fetch_failed"
    assert time.monotonic() - start < 3
