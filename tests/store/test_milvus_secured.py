"""A real server with users and TLS: the token counts, and the certificate."""

from __future__ import annotations

import shutil
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Row, Store, StoreConfig, StoreUnavailable, retrying
from security.servers import make_certificates
from support.fixtures import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from store.milvus_server import MilvusServer

pytestmark = [pytest.mark.milvus_server, pytest.mark.timeout(400)]
T = TypeVar("T")
ROOT = "root:Milvus"  # what Milvus begins with


@pytest.fixture
def secured(milvus_server: MilvusServer, tmp_path: Path) -> Iterator[str]:
    """The address of the session's server, restarted so that it wants a token and speaks TLS alone."""
    if shutil.which("openssl") is None:
        skip_or_fail("no openssl to make certificates with")
    make_certificates(tmp_path)
    files = {"SERVERPEMPATH": "cert.pem", "SERVERKEYPATH": "key.pem", "CAPEMPATH": "ca.pem"}
    milvus_server.kill()
    try:
        milvus_server.start(
            COMMON_SECURITY_AUTHORIZATIONENABLED="true",
            COMMON_SECURITY_TLSMODE="1",
            **{f"TLS_{name}": str(tmp_path / file) for name, file in files.items()},
        )
        yield milvus_server.uri.replace("http://", "https://")
    finally:
        milvus_server.kill()
        milvus_server.start()


def patiently(call: Callable[[], T]) -> T:
    """A server that has just started is slow, and says so."""
    return retrying(call, deadline=monotonic() + 120, stop=Event())


def test_given_a_milvus_with_users_and_tls_then_it_is_served_by_token_and_ca_and_by_nothing_less(
    secured: str, tmp_path: Path
) -> None:
    ca = str(tmp_path / "ca.pem")
    # Given the token and the CA, Then rows go in and are found
    store = Store(StoreConfig(secured, ROOT, ca, consistency="Strong"))
    vector = np.array([1, 0, 0, 0], np.float32)
    patiently(lambda: store.ensure_collection("secured", fingerprint="f", dimension=4))
    assert patiently(lambda: store.upsert("secured", [Row("a", vector, {"n": 1})])) == [None]
    found = patiently(lambda: store.search("secured", vector[None], fingerprint="f", limit=1))
    assert found[0][0].id == "a"
    patiently(lambda: store.drop("secured"))
    store.close()
    # Given another token or none, Then it is refused, and that is said without showing it
    for token in ("root:hunter2", ""):
        wrong = Store(StoreConfig(secured, token, ca))
        with pytest.raises(RequestFailed, match="MILVUS_TOKEN") as refused:
            patiently(lambda wrong=wrong: wrong.count("secured"))
        assert refused.value.code is ErrorCode.STORE_FAILED
        assert "hunter2" not in str(refused.value)
        wrong.close()
    # Given another CA, or no encryption, Then nothing is said to it
    for uri, file in ((secured, str(tmp_path / "other.pem")), (secured.replace("https", "http"), "")):
        stranger = Store(StoreConfig(uri, ROOT, file, timeout_s=3))
        with pytest.raises(StoreUnavailable):
            stranger.probe()
        stranger.close()
