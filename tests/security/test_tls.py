"""Redis over TLS alone: our client, worker and command speak it, and trust nobody but the CA that they were given."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import redis

from clipfleet.producer import Client, Unavailable
from security.servers import DEPLOY, SELECTORS, make_users, release
from support.cli import end, start
from support.fixtures import skip_or_fail
from support.redis_server import RedisServer, free_port
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.cli import Done
    from support.fleet import WorkerProcess


@pytest.fixture
def tls_redis(redis_binary: str, certificates: Path) -> Iterator[RedisServer]:
    """A server that speaks TLS to clients with a certificate of the CA; its plain port is for the fixture alone."""
    # With nothing to listen on it ends at once, and says whether it knew the option.
    said = subprocess.run([redis_binary, "--port", "0", "--tls-port", "0"], capture_output=True, text=True, check=False)
    if "Bad directive" in said.stdout + said.stderr:
        skip_or_fail("this redis-server was built without TLS")
    with RedisServer(
        redis_binary,
        tls_port=free_port(),
        tls_cert_file=certificates / "cert.pem",
        tls_key_file=certificates / "key.pem",
        tls_ca_cert_file=certificates / "ca.pem",
        tls_auth_clients="yes",
        bind=["127.0.0.1", "127.0.0.2"],
    ) as server:
        yield server


def url(
    server: RedisServer, certificates: Path, *, ca: str = "ca", host: str = "127.0.0.1", client: bool = True
) -> str:
    own = f"&ssl_certfile={certificates}/cert.pem&ssl_keyfile={certificates}/key.pem" if client else ""
    return f"rediss://{host}:{server.config['tls_port']}?ssl_ca_certs={certificates}/{ca}.pem{own}"


def test_given_tls_with_client_certificates_then_worker_client_and_command_speak_it(
    tls_redis: RedisServer,
    certificates: Path,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    cli: Callable[..., Done],
) -> None:
    address = url(tls_redis, certificates)
    worker = start_worker(address, tls_redis.client(), model="none")
    with Client(address, queue=keys.queue, timeout=20) as client:
        assert client.run("echo", {"data": b"x"}).outputs == {"data": b"x"}
    done = cli("status", "--json", "--queue", keys.queue, REDIS_URL=address)
    assert done.code == 0, done.out + worker.log
    assert worker.terminate() == 0


SLOWER = [
    pytest.param(fault, marks=pytest.mark.chaos) for fault in ("no CA of its own", "another name", "no certificate")
]


@pytest.mark.parametrize("fault", ["another CA", *SLOWER])
def test_given_somebody_else_then_the_client_and_the_worker_say_nothing_to_it(
    tls_redis: RedisServer, certificates: Path, keys: QueueKeys, tmp_path: Path, fault: str
) -> None:
    address = {
        "another CA": url(tls_redis, certificates, ca="other"),
        "no CA of its own": f"rediss://:s3cret@127.0.0.1:{tls_redis.config['tls_port']}",
        "another name": url(tls_redis, certificates, host="127.0.0.2"),
        "no certificate": url(tls_redis, certificates, client=False),
    }[fault]
    with (
        Client(address, queue=keys.queue, timeout=2, wait_for_worker=True) as client,
        pytest.raises(Unavailable) as told,
    ):
        client.run("echo", {"data": 1})
    assert "s3cret" not in str(told.value)
    said = worker_says(tmp_path, fault, keys, REDIS_URL=address)
    assert "certificate" in said or "ssl" in said.lower()
    assert "s3cret" not in said
    # Nobody got as far as a command: not even the connection's name was told.
    with tls_redis.client() as admin:
        wait_until(lambda: len(admin.client_list()) == 1, 5, "the refused connections to be gone")
        assert admin.dbsize() == 0
        assert {"auth", "evalsha", "hset", "xadd"}.isdisjoint(admin.info("commandstats").keys())


def worker_says(folder: Path, fault: str, keys: QueueKeys, **env: str) -> str:
    """All that it wrote. Whom it does not trust it gives up; who hangs up on it may yet be another day's Redis."""
    process = start("worker", "--queue", keys.queue, "--model", "none", cwd=folder, **env)
    if fault != "no certificate":
        said = "".join(process.communicate(timeout=60))
        assert process.returncode == 1, said
        return said
    first = next(line for line in iter(process.stderr.readline, "") if "waiting for Redis" in line)
    return first + "".join(end(process))


def settings_of(conf: Path) -> dict[str, str]:
    """A redis.conf as RedisServer takes it."""
    lines = [line for line in conf.read_text().splitlines() if line and not line.startswith("#")]
    pairs = (line.split(maxsplit=1) for line in lines)
    return {name.replace("-", "_"): value.strip('"') for name, value in pairs}


def test_given_the_configuration_that_we_ship_then_it_starts_and_takes_no_field_that_is_too_large(
    redis_binary: str, certificates: Path, tmp_path: Path
) -> None:
    made = make_users(tmp_path / "passwords", "--from", str(DEPLOY / acl_for(redis_binary)))
    (tmp_path / "users.acl").write_text(made.stdout)
    places = {
        "aclfile": tmp_path / "users.acl",
        "tls_cert_file": certificates / "cert.pem",
        "tls_key_file": certificates / "key.pem",
        "tls_ca_cert_file": certificates / "ca.pem",
    }
    port = free_port()
    shipped = settings_of(DEPLOY / "redis.conf")
    assert shipped.keys() > places.keys()
    assert shipped["port"] == "0"
    # (a plain port, for this test alone)
    with RedisServer(redis_binary, **shipped | places | {"port": port, "tls_port": free_port()}) as server:
        admin = {"username": "admin", "password": (tmp_path / "passwords" / "admin").read_text().strip()}
        with server.client(**admin) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            client.xadd("lane", {"m": b"x" * 9_000_000})
            with pytest.raises((redis.ConnectionError, redis.ResponseError)):
                client.xadd("lane", {"m": b"x" * 20_000_000})
            assert client.xlen("lane") == 1


def acl_for(binary: str) -> str:
    return "users.acl" if release(binary) >= SELECTORS else "users-6.2.acl"
