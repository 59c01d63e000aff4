"""An indexer killed again and again, its worker too, a store that loses rows: at the end each is there, once."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from clipfleet.index import Manifest
from clipfleet.producer import Client, requests
from clipfleet.store import Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.cli import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

FILES, MEMBERS, KILLS = 2_400, 100, 10


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def write_corpus(folder: Path) -> dict[str, bytes]:
    """A folder and a shard; each id's picture."""
    (folder / "pics").mkdir(parents=True)
    pictures: dict[str, bytes] = {}
    for number in range(FILES):
        pictures[f"{number:04}.png"] = picture(number)
        (folder / "pics" / f"{number:04}.png").write_bytes(pictures[f"{number:04}.png"])
    with tarfile.open(folder / "shard.tar", "w") as archive:
        for number in range(MEMBERS):
            data = pictures[f"shard/{number:04}"] = picture(FILES + number)
            info = tarfile.TarInfo(f"{number:04}.png")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return pictures


def rest_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What is left in both streams, once it has ended; ``communicate`` would lose what was read ahead."""
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    process.wait(60)
    return out, err


class Indexer:
    """The command on one corpus."""

    def __init__(self, folder: Path, redis_url: str, queue: str, milvus_uri: str) -> None:
        self.folder = folder
        self.environment = clean_environment(
            CLIPFLEET_REDIS_URL=redis_url, CLIPFLEET_QUEUE=queue, CLIPFLEET_MILVUS_URI=milvus_uri
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "clipfleet.cli", "index", "pics", "shard.tar", "--json", *args],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_after(self, answers: int, seconds: float) -> list[str]:
        """Kill -9 after so many pictures were told, or while it starts; the ids that were told."""
        with self.start() as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(answers)]
            if not told:
                time.sleep(seconds)  # where it is hit is chance, and must not matter
            process.send_signal(signal.SIGKILL)
            out, err = rest_of(process)
        assert process.returncode == -signal.SIGKILL, err
        # Its last line may be cut.
        return [json.loads(line)["id"] for line in told + out.splitlines()[:-1]]

    def known(self) -> set[str]:
        """What the manifest calls done."""
        (path,) = (self.folder / ".clipfleet" / "index").glob("*.sqlite")
        with Manifest(path) as manifest:
            return {id_ for page in manifest.done() for id_ in page}

    def finish(self, *args: str, meanwhile: Callable[[], None] | None = None) -> tuple[list[str], dict[str, Any]]:
        """Run to the end, with something done twice on the way; the ids that were told, and the summary."""
        told: list[str] = []
        with self.start(*args) as process:
            assert process.stdout is not None
            for _ in range(2 if meanwhile is not None else 0):
                told += [process.stdout.readline() for _ in range(60)]
                assert meanwhile is not None
                meanwhile()
            out, err = rest_of(process)
        assert process.returncode == 0, err
        return [json.loads(line)["id"] for line in told + out.splitlines()], json.loads(err.splitlines()[-1])


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteServer]:
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_killed_ten_times_and_its_worker_twice_each_picture_is_indexed_once_and_right(
    redis_server: RedisServer,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    lite: LiteServer,
    tmp_path: Path,
) -> None:
    chance = random.Random(5)
    pictures = write_corpus(tmp_path)
    worker = start_worker(milvus_uri=lite.uri, lease_ms=2_000)
    indexer = Indexer(tmp_path, redis_server.url, keys.queue, lite.uri)
    known: set[str] = set()
    # When it is killed ten times, before anything and in the middle
    for _ in range(KILLS):
        now = set(indexer.kill_after(chance.choice([0, 1, chance.randint(2, 300)]), chance.random() * 0.5))
        # Then what was known as done is not sent again
        assert not now & known
        before, known = known, indexer.known()
        assert known >= before
    # and the worker twice, in a run that waits for the next one
    left, summary = indexer.finish(meanwhile=lambda: worker.child().kill())
    assert not set(left) & known
    # and in the end nothing is missing
    assert set(left) | known == set(pictures)
    assert summary["found"] == summary["indexed"] + summary["earlier"] == FILES + MEMBERS
    assert summary["earlier"] == len(known) > 0
    assert summary["reconciled"] is True
    # and the store holds each id once, with its picture's vector and metadata
    store = Store(StoreConfig(lite.uri))
    assert store.count("images") == FILES + MEMBERS
    rows = store.get("images", list(pictures))
    with Client(redis_server.url, queue=keys.queue, timeout=60) as client:
        vectors = [each.vector for each in client.map(requests.embed_image(data) for data in pictures.values())]
    for (id_, _), row, vector in zip(pictures.items(), rows, vectors, strict=True):
        assert row is not None, id_
        assert float(np.asarray(row.vector) @ np.asarray(vector)) == pytest.approx(1, abs=1e-4)
        assert row.metadata["path"] in {id_, f"{id_}.png"}
    # A run that is done sends nothing more; rows that the store has lost are sent once more, and they alone
    assert indexer.finish()[0] == []
    lost = chance.sample(list(pictures), 7)
    assert store.delete("images", ids=lost) == 7
    again, summary = indexer.finish()
    assert (again, summary["earlier"], summary["reconciled"]) == ([], FILES + MEMBERS, True)
    assert store.count("images") == FILES + MEMBERS
    # and a picture that has changed replaces its row
    (tmp_path / "pics" / "0007.png").write_bytes(picture(4711))
    os.utime(tmp_path / "pics" / "0007.png", ns=(1, 1))
    assert indexer.finish()[0] == ["0007.png"]
    (row,) = store.get("images", ["0007.png"])
    assert row is not None
    with Client(redis_server.url, queue=keys.queue, timeout=60) as client:
        changed = client.embed_image(picture(4711)).vector
    assert float(np.asarray(row.vector) @ np.asarray(changed)) == pytest.approx(1, abs=1e-4)
    # and one that has left leaves the collection when asked
    (tmp_path / "pics" / "0008.png").unlink()
    (tmp_path / "pics" / "0009.png").unlink()
    assert indexer.finish()[1]["found"] == FILES + MEMBERS - 2
    assert store.count("images") == FILES + MEMBERS
    _, summary = indexer.finish("--sync")
    assert (summary["said"][0], summary["reconciled"]) == ("2 that have left were taken out", True)
    assert store.count("images") == FILES + MEMBERS - 2
    assert store.present("images", ["0007.png", "0008.png", "0009.png", "shard/0000"]) == {"0007.png", "shard/0000"}
    store.close()
