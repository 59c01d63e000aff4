"""Pictures that workers read for themselves: the command says where they are, below a root that both know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from clipfleet.store import Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.cli import clean_environment
from support.warm import run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer


def test_given_a_root_that_both_know_when_paths_are_sent_then_workers_read_them(
    redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "a folder"
    folder.mkdir(parents=True)
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number} é.png")
    (folder / "link.png").symlink_to(folder / "0 é.png")
    with LiteServer(tmp_path / "lite") as lite:
        start_worker(milvus_uri=lite.uri, allow_roots={"photos": str(tmp_path / "data")})
        done = run_command(
            ["index", str(folder), "--send", "path", "--root", "photos=data"],
            cwd=tmp_path,
            env=clean_environment(
                CLIPFLEET_REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue, CLIPFLEET_MILVUS_URI=lite.uri
            ),
            timeout=100,
        )
        assert done.code == 0, done.err
        assert "6 of 6 pictures indexed" in done.out
        assert "reconciled: the store holds each of the 6" in done.out
        store = Store(StoreConfig(lite.uri))
        assert store.present("images", ["4 é.png", "link.png"]) == {"4 é.png", "link.png"}
        store.close()
