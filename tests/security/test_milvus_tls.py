"""Milvus behind TLS: our store, worker and doctor speak to it, and trust nobody but the CA that they were given."""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pytest

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.settings import Flags, load
from clipfleet.cli.worker_config import build
from clipfleet.schemas.errors import RequestFailed
from clipfleet.schemas.request import Request
from clipfleet.schemas.result import decode_result
from clipfleet.store import Row, Store, StoreConfig, StoreUnavailable, retrying
from clipfleet.store.lite import LiteServer
from clipfleet.worker import WorkerConfig
from support.fleet import admit, results
from support.tls_proxy import TlsProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.cli import Done
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

TOKEN = "root:hunter2"
PICTURE = b"P6 2 2 255 " + bytes(range(12))


@pytest.fixture(scope="module")
def milvus(certificates: Path) -> Iterator[str]:
    """The address of a Milvus whose certificate our own CA has signed, for 127.0.0.1 and localhost."""
    with LiteServer(certificates / "lite") as lite, TlsProxy(urlsplit(lite.uri).port or 0, certificates) as proxy:
        yield f"https://127.0.0.1:{proxy.port}"


def test_given_the_ca_when_rows_are_written_then_they_are_found(milvus: str, certificates: Path) -> None:
    store = Store(StoreConfig(milvus, TOKEN, str(certificates / "ca.pem"), consistency="Strong"))
    store.ensure_collection("tls", fingerprint="f", dimension=4)
    vector = np.array([1, 0, 0, 0], np.float32)
    assert store.upsert("tls", [Row("a", vector, {"n": 1})]) == [None]
    assert store.search("tls", vector[None], fingerprint="f", limit=1)[0][0].id == "a"
    store.close()


@pytest.mark.parametrize("fault", ["another CA", "no CA", "another name"])
def test_given_somebody_else_then_the_store_says_why_it_is_not_spoken_to(
    milvus: str, certificates: Path, fault: str
) -> None:
    config = {
        "another CA": StoreConfig(milvus, TOKEN, str(certificates / "other.pem")),
        "no CA": StoreConfig(milvus, TOKEN),
        "another name": StoreConfig(milvus.replace("127.0.0.1", "127.0.0.2"), TOKEN, str(certificates / "ca.pem")),
    }[fault]
    store = Store(config)
    with pytest.raises(StoreUnavailable, match=r"not trusted.*MILVUS_CA_FILE") as told:
        store.probe()
    assert "hunter2" not in str(told.value)
    # An item that waits for it has the reason in its result.
    with pytest.raises(RequestFailed, match="MILVUS_CA_FILE"):
        retrying(store.probe, deadline=time.monotonic(), stop=Event())
    store.close()


def test_given_the_ca_by_environment_then_worker_and_doctor_speak_to_it(
    milvus: str,
    certificates: Path,
    make_redis: Callable[..., RedisServer],
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    cli: Callable[..., Done],
) -> None:
    server, ca = make_redis(), str(certificates / "ca.pem")
    with server.client() as client:
        start_worker(server.url, server.client(), milvus_uri=milvus, milvus_ca_file=ca)
        row = {"image": PICTURE, "id": "a", "collection": "tls_worker"}
        assert admit(client, keys, [Request("r1", "index_image", row)])[0] == 1
        result = decode_result(results(client, keys, ["r1"])["r1"][0])
        assert result.ok, result.error
    fleet = {"REDIS_URL": server.url, "MILVUS_URI": milvus, "CLIPFLEET_QUEUE": keys.queue}
    assert "milvus_lite" in cli("doctor", "--json", **fleet, MILVUS_CA_FILE=ca).out
    assert "not trusted" in cli("doctor", "--json", **fleet).out


@pytest.mark.parametrize("name", ["MILVUS_CA_FILE", "CLIPFLEET_MILVUS_CA_FILE"])
def test_given_a_ca_file_when_settings_are_read_then_it_stays_a_path(certificates: Path, name: str) -> None:
    ca = str(certificates / "ca.pem")
    settings = load(Flags(milvus_uri="https://milvus:19530"), {name: ca})
    assert settings.milvus_ca_file == ca
    assert build(settings, {}).milvus_ca_file == ca


@pytest.mark.parametrize(
    ("uri", "file", "told"),
    [
        ("https://milvus:19530", "missing.pem", "No such file"),
        ("https://milvus:19530", "extensions", "cannot be used"),
        ("http://milvus:19530", "ca.pem", "in the clear"),
    ],
)
def test_given_a_ca_file_that_is_no_use_then_it_is_a_usage_error_at_once(
    certificates: Path, uri: str, file: str, told: str
) -> None:
    ca = str(certificates / file)
    with pytest.raises(ValueError, match=told):
        StoreConfig(uri, ca_file=ca)
    with pytest.raises(ValueError, match=told):
        WorkerConfig(milvus_uri=uri, milvus_ca_file=ca)
    with pytest.raises(CliError, match=told) as caught:
        build(load(Flags(milvus_uri=uri), {"MILVUS_CA_FILE": ca}), {})
    assert caught.value.exit is Exit.USAGE
