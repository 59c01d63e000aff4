"""Many producer processes, several worker processes: each input gets its own vector, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clipfleet.models import Tokenize, open_runtime, resolve_model
from clipfleet.operators import ImageLimits, prepare_image
from support.fleet import TESTS, TINY
from support.producer_process import picture_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

PRODUCERS = 8
READS = ("xreadgroup", "blmove", "lrange", "blpop", "lpop")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "count"),
    [pytest.param(str(TINY), 2_000, id="tiny"), pytest.param("demo", 10_000, id="demo", marks=pytest.mark.slow)],
)
def test_every_input_of_eight_producers_gets_its_own_vector_once(
    model: str,
    count: int,
    redis_server: RedisServer,
    redis_client: redis.Redis,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    tmp_path: Path,
) -> None:
    # Given three worker processes that batch up to 64
    worker = start_worker(model=model, processes=3, max_batch_size=64, max_delay_ms=50, decode_threads=1)
    redis_client.config_resetstat()
    # When eight producer processes send distinct texts and pictures
    bundle = resolve_model(model)
    height, width = bundle.config.image.size
    outputs = [tmp_path / f"{share}.npz" for share in range(PRODUCERS)]
    producers = [
        subprocess.Popen(
            [sys.executable, "-m", "support.producer_process", redis_server.url, keys.queue]
            + [str(one) for one in (share, PRODUCERS, count, width, height, out)],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
        )
        for share, out in enumerate(outputs)
    ]
    assert [producer.wait(500) for producer in producers] == [0] * PRODUCERS
    calls = redis_client.info("commandstats")
    # Then none failed, none is lost, none is doubled
    assert [json.loads(out.with_suffix(".json").read_text()) for out in outputs] == [[]] * PRODUCERS
    found = [np.load(out) for out in outputs]
    numbers = np.concatenate([one["numbers"] for one in found])
    assert sorted(numbers.tolist()) == list(range(count))
    # and each vector is that of its own input, run alone
    vectors = np.concatenate([one["vectors"] for one in found])
    alone = _alone(bundle, numbers, width, height)
    assert float(np.min(np.sum(vectors * alone, axis=1))) >= 0.9999
    # Round trips were shared, and at saturation (the tiny model is quicker than its producers) batches well filled
    if model == "demo":
        batches = np.concatenate([one["batches"] for one in found])
        assert count / np.sum(1.0 / batches) >= 0.75 * 64
    assert _calls_besides_settling(calls, count) / count <= 0.5
    assert worker.terminate() == 0


def _alone(bundle: Any, numbers: np.ndarray, width: int, height: int) -> np.ndarray:
    runtime = open_runtime(bundle)
    tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
    vectors = [
        runtime.encode_texts([tokenize(text_of(number))[0]])[0]
        if number % 2
        else runtime.encode_images(
            prepare_image(picture_of(number, width, height), bundle.config.image, ImageLimits())[None]
        )[0]
        for number in numbers.tolist()
    ]
    runtime.close()
    return np.array(vectors)


def _calls_besides_settling(stats: dict[str, Any], settled: int) -> int:
    evaluations = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))
    reads = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in READS)
    # XREADGROUP and LRANGE are never called by the scripts; EVALSHA never is either.
    return int(evaluations - settled + reads)


def test_more_than_a_thousand_refusals_and_every_request_is_answered(
    redis_server: RedisServer, redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a queue that holds 500, and producers that have 1,600 in flight
    start_worker(capacity=500)
    outcomes = [
        subprocess.Popen(
            [sys.executable, "-m", "support.stubborn_producer", redis_server.url, keys.queue, str(share), "1000"],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
        )
        for share in range(4)
    ]
    reports = [json.loads(one.communicate(timeout=100)[0]) for one in outcomes]
    # Then more than a thousand were refused, each with a time after which to come back, and all were answered
    assert sum(report["refused"] for report in reports) > 1_000
    assert min(report["least_retry_after"] for report in reports) > 0
    assert [report["answered"] for report in reports] == [1_000] * 4
