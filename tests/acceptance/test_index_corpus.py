"""20,000 pictures of mixed sources, three kills of the indexer and two of a worker: each is there, and right."""

from __future__ import annotations

import csv
import json
import signal
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections import defaultdict
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipfleet.models.bundle import load_bundle
from clipfleet.models.runtime import open_runtime
from clipfleet.operators import prepare_image
from clipfleet.store import Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.cli import clean_environment
from support.fleet import TINY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

FILES, MEMBERS, ZIPPED, ROWS = 9_000, 5_000, 3_000, 1_500
TOTAL = FILES + MEMBERS + ZIPPED + 2 * ROWS
SOURCES = ("pics", "shards/{0..4}.tar", "more.zip", "tables/one.csv", "tables/two.parquet")
BROKEN_EVERY, SAME_EVERY = 500, 25


def picture(number: int) -> bytes:
    """A PNG of 6 by 8 pixels that no other number gives; every 500th is cut, every 25th is one of a hundred."""
    seed = number % 100 if number % SAME_EVERY == 0 else number
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 6 * 3), dtype=np.uint8)
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels), 1)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 6, 8, 8, 2, 0, 0, 0)), (b"IDAT", packed), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts
    )
    return data[:60] + b"%d" % number if number % BROKEN_EVERY == 7 else data


def write_corpus(folder: Path) -> dict[str, bytes]:
    """Each id's bytes."""
    numbers = iter(range(TOTAL))
    corpus: dict[str, bytes] = {}
    for number in range(FILES):
        path = folder / "pics" / f"{number % 30:02}" / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = corpus[path.relative_to(folder / "pics").as_posix()] = picture(next(numbers))
        path.write_bytes(data)
    (folder / "shards").mkdir()
    for shard in range(5):
        with tarfile.open(folder / "shards" / f"{shard}.tar", "w") as archive:
            for number in range(MEMBERS // 5):
                data = corpus[f"{shard}/{number:04}"] = picture(next(numbers))
                info = tarfile.TarInfo(f"{number:04}.png")
                info.size = len(data)
                archive.addfile(info, BytesIO(data))
    with zipfile.ZipFile(folder / "more.zip", "w") as zipped:
        for number in range(ZIPPED):
            data = corpus[f"more/{number:04}.png"] = picture(next(numbers))
            zipped.writestr(f"{number:04}.png", data)
    (folder / "tables").mkdir()
    rows = []
    for number in range(2 * ROWS):
        data = corpus[f"sku-{number}"] = picture(next(numbers))
        (folder / "tables" / f"{number}.png").write_bytes(data)
        rows.append({"id": f"sku-{number}", "path": f"{number}.png", "kind": "table"})
    with (folder / "tables" / "one.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows[:ROWS])
    pq.write_table(pa.Table.from_pylist(rows[ROWS:]), folder / "tables" / "two.parquet")
    return corpus


def vectors_of(pictures: list[bytes]) -> np.ndarray:
    """What the model gives for each, without a fleet."""
    bundle = load_bundle(TINY)
    runtime = open_runtime(bundle, providers=("cpu",))
    config = bundle.config.image
    batches = [pictures[start : start + 64] for start in range(0, len(pictures), 64)]
    return np.concatenate(
        [runtime.encode_images(np.stack([prepare_image(one, config) for one in batch])) for batch in batches]
    )


class Indexer:
    """The command on one corpus."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = clean_environment(**environment)
        self.told: list[str] = []

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "clipfleet.cli", "index", *SOURCES, "--dedupe", "--manifest", "m", "--json"]
        with (self.folder / "err").open("ab") as err:
            return subprocess.Popen(
                [*command, *args], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=err
            )

    def run_until(self, answers: int, *args: str) -> None:
        """Kill -9 once so many pictures were told."""
        with self.start(*args) as process:
            assert process.stdout is not None
            for _ in range(answers):
                self.told.append(process.stdout.readline().decode())
            process.send_signal(signal.SIGKILL)
            # Its last line may be cut.
            self.told += process.stdout.read().decode().splitlines()[:-1]
        assert process.returncode == -signal.SIGKILL, self.err

    def finish(self, *args: str, meanwhile: tuple[Callable[[], None], ...] = (), after: int = 0) -> dict[str, Any]:
        """Run to the end, with things done on the way; the summary."""
        with self.start(*args) as process:
            assert process.stdout is not None
            for do in meanwhile:
                for _ in range(after):
                    self.told.append(process.stdout.readline().decode())
                do()
            self.told += process.stdout.read().decode().splitlines()
        assert process.returncode == 3, self.err
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        return found

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def indexed(self) -> list[str]:
        """The ids that were told as indexed, in all runs."""
        return [one["id"] for one in map(json.loads, self.told) if one["ok"]]


def check(store: Store, corpus: Mapping[str, bytes], folder: Path) -> tuple[set[str], dict[str, str]]:
    """The store alone against the corpus alone, and what is said of both; which ids have rows, which are others'."""
    rows: dict[str, Row] = {row.id: row for page in store.scan("images") for row in page}
    good = {id_: data for id_, data in corpus.items() if data.endswith(b"IEND\xaeB`\x82")}
    ids_of: defaultdict[bytes, set[str]] = defaultdict(set)
    for id_, data in good.items():
        ids_of[data].add(id_)
    assert len(rows) == len(ids_of) == store.count("images")
    assert all(len(ids & rows.keys()) == 1 for ids in ids_of.values())
    wanted = vectors_of([corpus[id_] for id_ in rows])
    held = np.stack([row.vector for row in rows.values()])
    assert np.abs(held - wanted).max() < 1e-5
    # Which says something, since other pictures have other vectors
    assert np.abs(held - np.roll(wanted, 1, axis=0)).max(axis=1).min() > 1e-3
    same = {line["id"]: line["same_as"] for line in lines(folder / "m.duplicates.jsonl")}
    assert same.keys() == good.keys() - rows.keys()
    assert all(same_as in rows and corpus[id_] == corpus[same_as] for id_, same_as in same.items())
    failed = {line["id"]: line["error"]["code"] for line in lines(folder / "m.failures.jsonl")}
    assert failed.keys() == corpus.keys() - good.keys()
    assert set(failed.values()) == {"corrupt_image"}
    return set(rows), same


def lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_corpus_of_mixed_sources_survives_the_kills_of_a_night_and_the_reconcile_is_exact(
    redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path)
    assert len(corpus) == TOTAL == 20_000
    with LiteServer(tmp_path / "lite") as lite:
        worker = start_worker(milvus_uri=lite.uri, lease_ms=2_000)
        environment = {"CLIPFLEET_REDIS_URL": redis_server.url, "CLIPFLEET_MILVUS_URI": lite.uri}
        indexer = Indexer(tmp_path, CLIPFLEET_QUEUE=keys.queue, **environment)
        # When the indexer is killed three times, once with producer processes of its own
        indexer.run_until(4_000)
        indexer.run_until(4_000, "--processes", "2")
        indexer.run_until(3_000)
        # and the worker twice, in the run that comes to an end
        kill = lambda: worker.child().kill()  # noqa: E731
        summary = indexer.finish(meanwhile=(kill, kill), after=1_500)
        # Then nothing is missing and nothing is twice, and each vector is that of its picture
        store = Store(StoreConfig(lite.uri))
        rows, same = check(store, corpus, tmp_path)
        assert summary["reconciled"] is True, summary
        assert "only the id" not in summary["said"][-1]
        assert summary["found"] + summary["duplicates"] == TOTAL
        assert summary["duplicates"] == len(same)
        # and what was told as indexed was told once, but for what a kill made it tell again
        assert set(indexer.indexed()) <= rows
        # A run more sends nothing
        indexer.told.clear()
        assert indexer.finish()["earlier"] == len(rows)
        assert indexer.indexed() == []
        # When rows are lost, and others are overwritten with another picture, the next run puts them right
        lost, overwritten = sorted(rows)[:5], sorted(rows)[-5:]
        store.delete("images", ids=lost)
        others = [each for each in store.get("images", overwritten) if each is not None]
        store.ensure_collection("images", **about(store))
        wrong = [Row(id_, each.vector, each.metadata) for id_, each in zip(overwritten[1:], others, strict=False)]
        assert not any(store.upsert("images", wrong))
        assert indexer.finish()["reconciled"] is True
        assert f"{len(lost)} of {len(rows):,} are missing in the store and {len(wrong)} hold another picture" in (
            indexer.err
        )
        assert check(store, corpus, tmp_path)[0] == rows
        # When a kept picture leaves the corpus, one of its duplicates takes its place
        id_, kept = next((id_, kept) for id_, kept in same.items() if (tmp_path / "pics" / kept).exists())
        (tmp_path / "pics" / kept).unlink()
        assert indexer.finish("--sync")["reconciled"] is True
        del corpus[kept]
        now, _ = check(store, corpus, tmp_path)
        assert kept not in now
        assert len(now) == len(rows)
        assert corpus[id_] in {corpus[each] for each in now - rows}
        store.close()


def about(store: Store) -> dict[str, Any]:
    """What the collection was made for."""
    (info,) = store.list_collections()
    return {"fingerprint": info.fingerprint, "dimension": info.dimension}
