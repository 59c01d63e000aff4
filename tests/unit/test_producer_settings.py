"""URLs and settings: read strictly, shown without secrets."""

from __future__ import annotations

import ssl

import pytest

from clipfleet.producer import AsyncClient, Client
from clipfleet.producer.connection.address import parse_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost", ("localhost", 6379, "", "", "", 0)),
        ("redis://localhost:7000/3", ("localhost", 7000, "", "", "", 3)),
        ("redis://:p%40ss@h", ("h", 6379, "", "", "p@ss", 0)),
        ("redis://user:pw@[::1]:7000?db=2", ("::1", 7000, "", "user", "pw", 2)),
        ("unix:///tmp/redis.sock?db=1", ("", 6379, "/tmp/redis.sock", "", "", 1)),
        ("unix://:pw@/tmp/a%20b.sock", ("", 6379, "/tmp/a b.sock", "", "pw", 0)),
    ],
)
def test_urls(url, expected):
    address = parse_url(url)
    assert (address.host, address.port, address.path, address.username, address.password, address.db) == expected
    assert address.tls is None


def test_tls_comes_with_the_scheme_and_verifies_by_default():
    address = parse_url("rediss://h")
    assert address.tls.verify_mode is ssl.CERT_REQUIRED
    assert address.tls.check_hostname
    lax = parse_url("rediss://h?ssl_cert_reqs=none").tls
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)
    own = ssl.create_default_context()
    assert parse_url("rediss://h", own).tls is own


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379", "http://h", "redis://h/x", "redis://h?unknown=1", "redis://h?ssl_ca_certs=x",
        "rediss://h?ssl_cert_reqs=maybe", "redis://:secret@h:port", "redis://:secret@h/abc",
    ],
)  # fmt: skip
def test_a_wrong_url_is_a_value_error_without_the_password(url):
    with pytest.raises(ValueError, match=r".") as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "options",
    [
        {"queue": "no such queue"},
        {"prefix": "a b"},
        {"lane": "fast"},
        {"durability": "all"},
        {"max_unanswered": 0},
        {"max_unanswered": 5000},
        {"io_timeout": 0},
        {"url": "redis://no:pw@h"[:8] + "a" * 60 + ":pw@h"},
    ],
)
def test_settings_that_cannot_be_are_refused(kind, options):
    with pytest.raises(ValueError, match=r"."):
        kind(**options)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_password_is_never_shown(kind):
    client = kind("redis://user:secret@h")
    assert "secret" not in repr(client) + repr(client._config)
    assert client._config.producer_name().startswith("user.")


@pytest.mark.parametrize("timeout", [0, -1, 86_401, float("nan")])
def test_a_timeout_is_within_its_bounds(timeout):
    with pytest.raises(ValueError, match="timeout"):
        Client(timeout=timeout).submit("echo", {})
