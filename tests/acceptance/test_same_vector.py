"""The same picture has the same vector whoever asks, and in whatever company."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clipfleet.producer import Client, requests
from support.fleet import TESTS

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

PICTURES = sorted((TESTS.parent / "examples" / "pictures").glob("*.png"))


def cosines(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.asarray(others, dtype=np.float64) @ np.asarray(one, dtype=np.float64)


def test_alone_in_company_by_client_and_by_command(
    redis_server: RedisServer, redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(model="demo", max_delay_ms=2_000, max_batch_size=64)
    picture = PICTURES[17]
    with Client(redis_server.url, queue=keys.queue, timeout=60) as client:
        # Given its vector alone
        alone = client.embed_image(picture)
        assert alone.notes["batch_size"] == 1
        # When it is asked for in a batch of 64, among 63 others
        company = [picture, *[one for one in PICTURES if one != picture][:63]]
        crowd = list(client.map((requests.embed_image(one) for one in company), max_in_flight=64))
    assert crowd[0].notes["batch_size"] == 64
    # and by command
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "clipfleet.cli", "embed", "--json"),
            *("--redis-url", redis_server.url, "--queue", keys.queue, "--image", str(picture)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    by_command = json.loads(ran.stdout)
    assert (by_command["ok"], Path(by_command["input"]).name) == (True, picture.name)
    # Then it is the same
    others = np.stack([np.asarray(crowd[0].vector), np.array(by_command["vector"], dtype=np.float32)])
    assert float(cosines(np.asarray(alone.vector), others).min()) >= 0.9999
    # and another picture's is not
    assert float(cosines(np.asarray(alone.vector), np.asarray(crowd[1].vector)[None]).max()) < 0.9999
