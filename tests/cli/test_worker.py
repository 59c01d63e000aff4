"""``clipfleet worker``: what it says before it serves. Serving itself is tested with the worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.cli import clean_environment, end, start
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
