"""``clipfleet worker``: what it says before it serves. Serving itself is tested with the worker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime

import pytest

from support.cli import clean_environment, end, start
from support.redis_server import RedisServer
from support.waiting import wait_until

BLOCKED = """
import importlib.util, sys
found = importlib.util.find_spec
blocked = sys.argv[1].split(",")
importlib.util.find_spec = lambda name, *more: None if name in blocked else found(name, *more)
from clipfleet.cli import main
sys.exit(main(["worker"]))
"""


@pytest.mark.parametrize("missing", ["numpy", "onnxruntime,torch"])
def test_given_a_package_that_is_missing_when_started_then_it_says_so_and_ends(missing, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, missing],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert f"a worker needs {missing.partition(',')[0]}" in done.stderr
    assert 'pip install "clipfleet[cpu]"' in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--max-batch-size", "0"], "max_batch_size must be 1 to"),
        (["--processes", "0"], "Invalid value for '--processes'"),
        (["--local", "--redis-url", "redis://x"], "--local and --redis-url"),
        (["--allow-root", "photos"], "--allow-root takes NAME=DIR"),
        (["--redis-url", "localhost:6379"], "--redis-url must start with"),
    ],
)
def test_given_a_setting_that_cannot_be_when_started_then_wrong_usage(cli, args, said):
    done = cli("worker", *args)
    assert done.code == 2
    assert said in done.err


def test_given_a_redis_when_started_then_it_serves_until_sigterm(cli, redis_server, keys, tmp_path):
    where = {"CLIPFLEET_REDIS_URL": redis_server.url, "CLIPFLEET_QUEUE": keys.queue}
    process = start("worker", "--model", "none", cwd=tmp_path, **where)
    with redis_server.client() as client:
        wait_until(lambda: client.zcard(keys.workers), 30, "a worker on the queue")
        wait_until(lambda: cli("status", **where).code == 0, 30, "a living worker in the status")
    _, err = end(process)
    assert process.returncode == 0, err
    assert cli("status", **where).code == 4


@pytest.fixture
def absent_redis(redis_binary):
    """A server that is not started yet."""
    server = RedisServer(redis_binary)
    yield server
    server.close()


@pytest.mark.chaos
def test_given_no_redis_when_started_then_it_waits_and_says_so_and_serves_when_there_is_one(
    absent_redis, keys, tmp_path
):
    where = {"CLIPFLEET_REDIS_URL": absent_redis.url, "CLIPFLEET_QUEUE": keys.queue}
    process = start("worker", "--model", "none", cwd=tmp_path, **where)
    waiting = (line for line in iter(process.stderr.readline, "") if "waiting for Redis" in line)
    said = [json.loads(next(waiting)) for _ in range(2)]
    first, second = (datetime.fromisoformat(one["timestamp"]) for one in said)
    assert (second - first).total_seconds() > 2, "not a line at each attempt"
    assert f":{absent_redis.port}. Connection refused" in said[1]["event"]
    absent_redis.start()
    with absent_redis.client() as client:
        wait_until(lambda: client.zcard(keys.workers), 30, "a worker on the queue")
    _, err = end(process)
    assert process.returncode == 0, err


def test_given_no_redis_when_told_to_stop_then_it_ends_at_once(absent_redis, tmp_path):
    process = start("worker", "--model", "none", "--redis-url", absent_redis.url, cwd=tmp_path)
    assert any("waiting for Redis" in line for line in iter(process.stderr.readline, ""))
    since = time.monotonic()
    end(process)
    assert process.returncode == 0
    assert time.monotonic() - since < 3


@pytest.mark.parametrize(
    ("config", "said"),
    [({"requirepass": "secret"}, "Redis refuses this worker"), ({"maxmemory_policy": "allkeys-lru"}, "allkeys-lru")],
)
def test_given_a_redis_that_cannot_be_used_when_started_then_it_says_why_and_ends(cli, make_redis, config, said):
    done = cli("worker", "--model", "none", "--redis-url", make_redis(**config).url)
    assert done.code == 1
    assert said in done.err
