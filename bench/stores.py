"""A store for a benchmark: the one that is named, else a real Milvus where there is one, else Milvus Lite."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import cpu_s, until
from clipfleet.store import Store, StoreConfig, StoreUnavailable
from clipfleet.store.lite import LITE_ROW_LIMIT, LiteServer, check_lite_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
SETTLE_S, CALM = 120.0, 0.35  # how long a store may be busy with indexes before we look, and cores that are no business


@dataclass(frozen=True)
class Place:
    """Where rows go.

    Attributes:
        uri: of Milvus.
        what: its name and version, for the page.
        pids: of its processes, as far as they are on this machine and known.
        most: rows that it is for; 0 = as many as there are.
        why: it is this one and no other; empty when it is what was asked for.
    """

    uri: str
    what: str
    pids: tuple[int, ...] = ()
    most: int = 0
    why: str = ""


@contextmanager
def place(uri: str = "") -> Iterator[Place]:
    """One to write to, gone afterwards unless it was named."""
    if uri:
        yield Place(uri, "Milvus")
        return
    # The server of the tests: a wheel of 58 MB that they download when they are asked to (`pytest -m milvus_server`).
    sys.path.append(str(ROOT / "tests"))
    from store.milvus_server import MilvusServer, is_unpacked

    if is_unpacked():
        server = MilvusServer()
        try:
            server.start()
            until(lambda: _makes_collections(server.uri), "a collection of Milvus", 120)
            yield Place(server.uri, "Milvus 2.3.5", (server.pid,))
        finally:
            server.close()
        return
    with tempfile.TemporaryDirectory() as folder, LiteServer(Path(folder)) as lite:
        assert lite.pid is not None
        why = "none is here: name one by --milvus-uri, or let the tests get theirs (pytest -m milvus_server)"
        yield Place(lite.uri, f"Milvus Lite {check_lite_version()}", (lite.pid,), LITE_ROW_LIMIT, why)


def settled(pids: Sequence[int]) -> bool:
    """Wait until a store's processes have made their indexes, after many rows; whether they have."""

    def idle() -> bool:
        before = cpu_s(*pids)
        time.sleep(2.0)  # the time over which its work is measured
        return cpu_s(*pids) - before < 2.0 * CALM

    try:
        until(idle, "a store that is done with its indexes", SETTLE_S)
    except TimeoutError:
        return False
    return True


def _makes_collections(uri: str) -> bool:
    """A server says that it is healthy before it is."""
    store = Store(StoreConfig(uri))
    try:
        store.ensure_collection("bench_first", fingerprint="bench", dimension=8)
        store.drop("bench_first")
    except StoreUnavailable:
        return False
    finally:
        store.close()
    return True
