"""Both stores, for one contract: Milvus Lite as clipfleet runs it, and a real Milvus 2.3.5."""

from __future__ import annotations

import os
import time
import uuid
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clipfleet.store import Store, StoreConfig, StoreUnavailable, retrying
from clipfleet.store.lite import LiteServer
from store.milvus_server import MilvusServer, Unobtainable, is_unpacked
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIMENSION = 8
FINGERPRINT = "model-a"


@pytest.fixture(scope="session")
def lite_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server.uri


@pytest.fixture(scope="session")
def milvus_server(request: pytest.FixtureRequest) -> Iterator[MilvusServer]:
    asked = "milvus_server" in (request.config.option.markexpr or "")
    if not asked and not is_unpacked():
        pytest.skip("a real Milvus is downloaded (58 MB) only when asked for: pytest -m milvus_server")
    try:
        server = MilvusServer()
    except Unobtainable as error:
        if asked and os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        server.start()
        wait_until(lambda: _makes_collections(server.uri), 120, "Milvus makes collections")
        yield server
    finally:
        server.close()


def _makes_collections(uri: str) -> bool:
    """A server says that it is healthy before it is; on a busy machine its first collection takes many seconds."""
    store = Store(StoreConfig(uri))
    try:
        store.ensure_collection("t_first", fingerprint=FINGERPRINT, dimension=DIMENSION)
        store.drop("t_first")
    except StoreUnavailable:
        return False
    finally:
        store.close()
    return True


@pytest.fixture(scope="session", params=["lite", pytest.param("server", marks=pytest.mark.milvus_server)])
def uri(request: pytest.FixtureRequest) -> str:
    if request.param == "lite":
        return str(request.getfixturevalue("lite_uri"))
    return str(request.getfixturevalue("milvus_server").uri)


@pytest.fixture
def store(uri: str) -> Iterator[Store]:
    made = Store(StoreConfig(uri, consistency="Strong"))
    yield made
    made.close()


@pytest.fixture
def name(uri: str) -> Iterator[str]:
    """A collection's name that nobody has used; dropped afterwards."""
    made = f"t_{uuid.uuid4().hex[:12]}"
    yield made
    cleaner = Store(StoreConfig(uri))
    cleaner.drop(made)
    cleaner.close()


@pytest.fixture
def collection(store: Store, name: str) -> str:
    """An empty collection of model-a with 8 dimensions and no declared fields."""
    make(store, name, FINGERPRINT)
    return name


def make(store: Store, name: str, fingerprint: str) -> None:
    """A collection, however long the store takes for the first one on a busy machine."""
    retrying(
        lambda: store.ensure_collection(name, fingerprint=fingerprint, dimension=DIMENSION),
        deadline=time.monotonic() + 60,
        stop=Event(),
    )


@pytest.fixture
def lite_dir(tmp_path: Path) -> Path:
    return tmp_path / "lite"


@pytest.fixture
def vector() -> np.ndarray:
    return np.linspace(-1, 1, DIMENSION, dtype=np.float32)
