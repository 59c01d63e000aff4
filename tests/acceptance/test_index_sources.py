"""The command indexes a shard and a table with a real worker and Milvus Lite, and search finds what they held."""

from __future__ import annotations

import csv
import io
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from clipfleet.producer import Client
from clipfleet.store.lite import LiteServer
from support.cli import clean_environment
from support.warm import run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def write_shard(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for number in range(6):
            # The last one is no picture
            data = picture(number) if number < 5 else b"<html>gone</html>"
            for name, content in ((f"{number:04}.png", data), (f"{number:04}.json", b'{"number": %d}' % number)):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def write_table(path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "sku", "kind"])
        for number in range(10, 15):
            (path.parent / f"{number}.png").write_bytes(picture(number))
            rows.writerow([f"{number}.png", f"sku-{number}", "table"])
        rows.writerow(["/etc/hostname", "sku-x", "attack"])
        rows.writerow([f"{path.parent}/../secret.png", "sku-y", "attack"])


def test_a_shard_and_a_table_are_indexed_and_found(
    redis_server: RedisServer,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    write_shard(tmp_path / "in" / "shard.tar.gz")
    write_table(tmp_path / "in" / "table.csv")
    (tmp_path / "secret.png").write_bytes(picture(99))
    with LiteServer(tmp_path / "lite") as lite:
        start_worker(milvus_uri=lite.uri)
        done = run_command(
            ["index", "in/shard.tar.gz", "in/table.csv", "--id-column", "sku"],
            cwd=tmp_path,
            env=clean_environment(CLIPFLEET_REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue),
            timeout=100,
        )
        assert done.code == 3, done.err
        assert "10 of 13 pictures indexed" in done.out
        assert done.err.count("fetch_forbidden: ") >= 2
        assert "0005.png: unsupported_media" in done.err
        with Client(redis_server.url, queue=keys.queue, timeout=30) as client:
            hits = [client.search(image=picture(number), limit=1).hits[0] for number in (3, 12)]
            everything = client.search(image=picture(99), limit=100).hits
    assert [(hit.id, hit.score == pytest.approx(1, abs=1e-4)) for hit in hits] == [
        ("shard/0003", True),
        ("sku-12", True),
    ]
    assert hits[0].metadata == {"path": "shard/0003.png", "name": "0003.png", "number": 3}
    assert hits[1].metadata == {"path": "12.png", "kind": "table"}
    assert {hit.id for hit in everything} == {
        *(f"shard/{number:04}" for number in range(5)),
        *(f"sku-{number}" for number in range(10, 15)),
    }
