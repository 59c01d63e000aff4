"""Whether a search and a write cost more when many rows are in the store."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pymilvus

from bench.harness import cpu_s, in_turn
from bench.results import Curve, Part, Plot
from bench.stats import Spread, percentile
from bench.stores import SETTLE_S, Place, place, settled
from clipfleet.store import Row, Store, StoreConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

DIMENSION, FINGERPRINT, LIMIT = 512, "bench", 10
WRITE, WRITES = 512, 4  # rows of a call, as a worker's; calls of a round
QUERIES, BATCH, BATCHES = 50, 64, 4  # of a round: one at a time, and as a worker sends them
FILL_S = 300.0  # for all rows of a collection
FLUSH_S = 120.0


class _Rows:
    """A collection with so many rows of random directions.

    Args:
        store: it is in.
        place: of that store.
        size: rows wanted.
    """

    def __init__(self, store: Store, place: Place, size: int) -> None:
        self.size = size
        self.name = f"bench_{size}"
        self.found: dict[str, list[float]] = {}
        self.single: list[float] = []
        self._store, self._place = store, place
        self._random = np.random.default_rng(size)

    def fill(self) -> str:
        """Write all rows; why there are fewer, if so: then ``size`` is what there is."""
        self._store.ensure_collection(self.name, fingerprint=FINGERPRINT, dimension=DIMENSION)
        began, wanted, why = time.monotonic(), self.size, ""
        for first in range(0, wanted, WRITE):
            if first and time.monotonic() - began > FILL_S:
                self.size = first
                why = f"{self._place.what} took {first:,} in {FILL_S:.0f} s, and that was all the time it had"
                break
            self._write(range(first, min(wanted, first + WRITE)))
        seconds = time.monotonic() - began
        self.found["fill"] = [1e6 * seconds / self.size]
        print(f"{self.size:,} rows written in {seconds:.0f} s", flush=True)
        self._flush()
        return why

    def _flush(self) -> None:
        """What a store does by itself in a while: all rows are in files, and a server indexes them."""
        client = pymilvus.MilvusClient(self._place.uri)
        try:
            client.flush(self.name, timeout=FLUSH_S)
        finally:
            client.close()

    def vectors(self, count: int) -> Any:
        """Normalised, float32 [count, 512]."""
        some = self._random.standard_normal((count, DIMENSION), dtype=np.float32)
        return some / np.linalg.norm(some, axis=1, keepdims=True)

    def _write(self, ids: Any) -> None:
        rows = [
            Row(str(number), one, {"n": int(number)}) for number, one in zip(ids, self.vectors(len(ids)), strict=True)
        ]
        if refused := [each for each in self._store.upsert(self.name, rows) if each]:
            raise refused[0]

    def round(self, _: int) -> None:
        """Searches, then rows that replace others; what was written is flushed as a worker's is, before the next."""
        queries = list(self.vectors(QUERIES))
        self._timed("search", QUERIES, lambda: [self._search(one[None]) for one in queries])
        many = self.vectors(BATCH * BATCHES)
        self._timed(
            f"search, {BATCH} at once",
            len(many),
            lambda: [self._search(many[at : at + BATCH]) for at in range(0, len(many), BATCH)],
        )
        some = [self._random.choice(self.size, min(WRITE, self.size), replace=False) for _ in range(WRITES)]
        self._timed("upsert", sum(map(len, some)), lambda: [self._write(ids) for ids in some])
        self._store.flush_quiet(0.0)

    def _search(self, vectors: Any) -> None:
        began = time.perf_counter()
        found = self._store.search(self.name, vectors, fingerprint=FINGERPRINT, limit=LIMIT)
        if len(vectors) == 1:
            self.single.append(time.perf_counter() - began)
        if any(not isinstance(one, list) or len(one) != LIMIT for one in found):
            raise RuntimeError(f"not {LIMIT} hits of {self.size:,} rows: {found[0]}")

    def _timed(self, what: str, items: int, work: Callable[[], Any]) -> None:
        cpu, began = cpu_s(*self._place.pids), time.perf_counter()
        work()
        self.found.setdefault(what, []).append((time.perf_counter() - began) / items * 1e6)
        self.found.setdefault(f"{what}: cpu", []).append((cpu_s(*self._place.pids) - cpu) / items * 1e6)


def run(options: argparse.Namespace) -> Part:
    """A collection of each size in one store, in turn."""
    part = Part(
        "stored",
        "What rows in the store cost",
        f"Collections with so many rows of {DIMENSION} dimensions, random directions, in one store: searches for "
        f"{LIMIT} hits one at a time and {BATCH} in a call, and upserts of {WRITE} rows in a call, which replace "
        "others. Without a worker, so that it is the store's time, with what our side of it takes. Processor time is "
        "the store's, background work included.",
    )
    with (
        place(options.milvus_uri) as at,
        closing(Store(StoreConfig(at.uri, expected_rows=max(options.rows), timeout_s=120))) as store,
    ):
        part.versions["store"] = at.what
        if at.why:
            part.skip("a Milvus server", at.why)
        collections = _filled(part, store, at, options.rows)
        calm = settled(at.pids)
        in_turn(options.rounds, [each.round for each in collections])
        if options.milvus_uri:
            for size in options.rows:
                store.drop(f"bench_{size}")
    _report(part, collections, "" if calm else f"the store still made indexes {SETTLE_S:.0f} s after the last row")
    return part


def _filled(part: Part, store: Store, at: Place, sizes: Sequence[int]) -> list[_Rows]:
    """A collection of each size, or of what there was time for, where that is more than what came before."""
    made: list[_Rows] = []
    for size in sizes:
        if at.most and size > at.most:
            part.skip(f"{size:,} rows", f"{at.what} is for up to {at.most:,}")
            continue
        rows = _Rows(store, at, size)
        if why := rows.fill():
            part.skip(f"{size:,} rows", why)
        if not made or rows.size > made[-1].size:
            made.append(rows)
    return made


def _report(part: Part, collections: list[_Rows], note: str) -> None:
    whats = ("search", f"search, {BATCH} at once", "upsert")
    for what in whats:
        for each in collections:
            alone, cores = what == "search", Spread.of(each.found[f"{what}: cpu"]).median
            part.add(
                f"{what}: {each.size:,} rows",
                each.found[what],
                "us/row" if what == "upsert" else "us/query",
                arrival="one at a time"
                if alone
                else f"a call of {WRITE if what == 'upsert' else BATCH} after the other",
                p50_ms=percentile(each.single, 50) * 1000 if alone else None,
                p99_ms=percentile(each.single, 99) * 1000 if alone else None,
                note=f"{cores:,.0f} us of the store's cores{f'; {note}' if note else ''}",
            )
    for each in collections:
        part.add(
            f"filling: {each.size:,} rows", each.found["fill"], "us/row", arrival=f"a call of {WRITE} after the other"
        )
    for each in collections[1:]:
        for what in whats:
            first = collections[0]
            part.ratio(f"{what}: {each.size:,} rows / {first.size:,}", each.found[what], first.found[what])
    curves = []
    for what in whats:
        spreads = [Spread.of(each.found[what]) for each in collections]
        x = [float(each.size) for each in collections]
        curves.append(Curve(what, x, [s.median for s in spreads], [s.low for s in spreads], [s.high for s in spreads]))
    part.plots.append(
        Plot(
            "stored", "Cost of a search and of a write", "rows in the collection", "us", curves, log_x=True, log_y=True
        )
    )
