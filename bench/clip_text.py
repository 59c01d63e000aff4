"""``search`` by words, end to end, with many rows in the store: against the text tower alone and the store alone.

python -m bench.clip_text [--model ViT-B-32/random] [--rows 100000] [--milvus-uri URI] [--quick]
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.clip_fleet import Fleet, fleets, per_core
from bench.clip_work import (
    Parts,
    Spent,
    allowed,
    carry_out,
    cpu_line,
    rates_of,
    rounds_of,
    spent,
)
from bench.results import Figure
from bench.stats import ratios
from bench.stores import settled
from clipfleet.models import resolve_model
from clipfleet.producer import requests
from clipfleet.store import Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer, check_lite_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.producer.requests import NewRequest

MODEL, UNIT, TARGET = "ViT-B-32/random", "queries/s", ">= 0.85"
COLLECTION, LIMIT, BATCH = "bench_text", 10, 64
WRITE = 4_096
WORDS = "a red small old wooden quiet bright dog cat boat house tree river on under near by the in with snow sun"


def run(
    *,
    model: str = MODEL,
    rounds: int = 5,
    count: int = 1024,
    rows: int = 100_000,
    milvus_uri: str = "",
    quick: bool = False,
) -> list[Figure]:
    """Measure; ``quick``: fewer rows, queries and rounds. Without an address Milvus Lite is started in a new folder."""
    if quick:
        rounds, count, rows = min(rounds, 3), min(count, 256), min(rows, 10_000)
    bundle = resolve_model(model)
    with contextlib.ExitStack() as stack:
        uri, pids, what = _milvus(stack, milvus_uri)
        store = Store(StoreConfig(uri, expected_rows=rows, timeout_s=120.0))
        stack.callback(store.close)
        fill(store, bundle.config.fingerprint, bundle.config.dimension, rows)
        if milvus_uri:  # else its folder is thrown away, however busy it is
            stack.callback(store.drop, COLLECTION)
        parts = Parts(bundle, (BATCH,))
        stack.callback(parts.close)
        flags = ["--model", model, "--milvus-uri", uri]
        split = [*flags, *per_core(), "--max-batch-size", str(BATCH)]
        ours = stack.enter_context(
            fleets({"as it comes": [*flags, "--max-batch-size", str(BATCH)], "a process per core": split})
        )
        for fleet in ours.values():
            fleet.pids += pids
        asked = texts(count)
        ids = parts.ids(asked)
        way = parts.best(ids)
        vectors = parts.model_vectors(ids)
        settled(pids)  # else the first round would be beside the making of indexes
        ways: dict[str, Callable[[], Spent]] = {
            "tokenize": lambda: parts.tokenize(asked),
            "tower": lambda: parts.model(ids, way),
            "store": lambda: _store_alone(store, bundle.config.fingerprint, vectors, pids),
            **{name: _sustained(fleet, count) for name, fleet in ours.items()},
        }
        found = rounds_of(ways, rounds)
        agreement = {
            name: _agrees(fleet, store, bundle.config.fingerprint, asked[:8], vectors[:8])
            for name, fleet in ours.items()
        }
        about = f"{what}, {rows:,} rows of {bundle.config.dimension}; batches of {BATCH}; tower: {way}"
        return _lines(found, ours, agreement, about)


def texts(count: int) -> list[str]:
    """Captions of 3 to 12 words."""
    rng = np.random.default_rng(3)
    words = WORDS.split()
    return [" ".join(rng.choice(words, 3 + number % 10)) for number in range(count)]


def fill(store: Store, fingerprint: str, dimension: int, rows: int) -> None:
    """So many rows of random directions."""
    store.ensure_collection(COLLECTION, fingerprint=fingerprint, dimension=dimension)
    rng = np.random.default_rng(1)
    for first in range(0, rows, WRITE):
        some = rng.standard_normal((min(WRITE, rows - first), dimension), dtype=np.float32)
        some /= np.linalg.norm(some, axis=1, keepdims=True)
        refused = store.upsert(
            COLLECTION, [Row(f"{first + at}", one, {"n": first + at}) for at, one in enumerate(some)]
        )
        assert not any(refused), next(filter(None, refused))
    store.flush_quiet(0.0)
    held = store.count(COLLECTION)
    assert held == rows, f"{held} rows of {rows} are there"


def _milvus(stack: contextlib.ExitStack, uri: str) -> tuple[str, tuple[int, ...], str]:
    if uri:
        return uri, (), "Milvus"
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    lite = stack.enter_context(LiteServer(Path(folder)))
    assert lite.pid is not None
    return lite.uri, (lite.pid,), f"Milvus Lite {check_lite_version()}"


def _store_alone(store: Store, fingerprint: str, vectors: Any, pids: tuple[int, ...]) -> Spent:
    def search() -> None:
        for first in range(0, len(vectors), BATCH):
            _hits(store, fingerprint, vectors[first : first + BATCH])

    return spent(search, len(vectors), pids)


def _hits(store: Store, fingerprint: str, vectors: Any) -> list[list[str]]:
    found = store.search(COLLECTION, vectors, fingerprint=fingerprint, limit=LIMIT)
    return [[hit.id for hit in one] for one in found if isinstance(one, list)]


def _sustained(fleet: Fleet, count: int) -> Callable[[], Spent]:
    def asked(total: int) -> Iterator[NewRequest]:
        return (requests.search(text, collection=COLLECTION, limit=LIMIT) for text in texts(total))

    return lambda: fleet.sustained(asked, count, warm=4 * BATCH)


def _agrees(fleet: Fleet, store: Store, fingerprint: str, asked: list[str], vectors: Any) -> str:
    """How many of the hits are those of the same vectors searched here."""
    found = [[hit.id for hit in fleet.client.search(text, collection=COLLECTION, limit=LIMIT).hits] for text in asked]
    known = _hits(store, fingerprint, vectors)
    same = sum(len(set(one) & set(other)) for one, other in zip(found, known, strict=True))
    return f"{same} of {sum(map(len, known))} hits as of the parts"


def _lines(
    found: dict[str, list[Spent]], ours: dict[str, Fleet], agreement: dict[str, str], about: str
) -> list[Figure]:
    alone = ("tokenize", "tower", "store")
    lines = [Figure(f"{name} alone", rates_of(found[name]), UNIT, note=cpu_line(found[name])) for name in alone]
    rounds = list(zip(*(found[name] for name in alone), strict=True))
    limits = tuple(allowed(*each) for each in rounds)
    cpu = tuple(sum(one.cpu_ms for one in each) for each in rounds)
    lines.append(Figure("all parts, one after the other", limits, UNIT, note=about))
    for name, fleet in ours.items():
        mine, title = found[name], f"clipfleet search, {name}"
        lines += [
            Figure(
                title,
                rates_of(mine),
                UNIT,
                arrival="closed loop, 256 in flight",
                batches=fleet.histogram,
                p50_ms=fleet.ms(50),
                p99_ms=fleet.ms(99),
                precision="fp32",
                note=f"batches are the tower's; {agreement[name]}; {cpu_line(mine)}",
            ),
            Figure(f"{title} / parts", ratios(rates_of(mine), limits), "x", TARGET),
            Figure(f"{title} / parts, by CPU", ratios(cpu, [one.cpu_ms for one in mine]), "x"),
        ]
    return lines


if __name__ == "__main__":
    carry_out(run, __doc__, model=MODEL, rounds=5, count=1024, rows=100_000, milvus_uri="")
