"""Many processes, one queue: the capacity holds exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.leaks import find_leaks
from support.raw_worker import RawWorker
from support.waiting import wait_until

CAPACITY = 500
PRODUCERS = 8


def start_producer(url, queue, count):
    command = [sys.executable, "-m", "support.burst", url, queue, str(count)]
    return subprocess.Popen(
        command, cwd=Path(__file__).parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_eight_producers_bursting_twice_the_capacity(redis_server, redis_client, keys):
    """Given no worker and a capacity of 500,
    when 8 processes send 1,000 requests at once,
    then exactly 500 are in, the lanes never hold more, the others are refused quickly with a time to come back, and
    refusals leave nothing behind."""
    redis_client.hset(keys.fleet, mapping={"capacity": CAPACITY + PRODUCERS, "bulk_capacity": CAPACITY, "rate": 100})
    each = 2 * CAPACITY // PRODUCERS
    producers = [start_producer(redis_server.url, keys.queue, each) for _ in range(PRODUCERS)]
    for producer in producers:
        assert producer.stdout.readline() == "ready\n"
    for producer in producers:
        producer.stdin.write("\n")
        producer.stdin.flush()
    highest = 0

    def all_ended():
        nonlocal highest
        highest = max(highest, sum(redis_client.xlen(lane) for lane in keys.lanes))
        return all(producer.poll() is not None for producer in producers)

    wait_until(all_ended, 60, "the producers to end")
    outcomes = [tuple(each) for producer in producers for each in json.loads(producer.communicate()[0])]

    accepted = [o for o in outcomes if o[0] == "accepted"]
    refused = [o for o in outcomes if o[0] == "refused"]
    assert (len(accepted), len(refused)) == (CAPACITY, CAPACITY)
    assert highest == CAPACITY + PRODUCERS
    entries = [fields[b"m"] for lane in keys.lanes for _, fields in redis_client.xrange(lane)]
    assert len(entries) == CAPACITY + PRODUCERS
    assert int(redis_client.get(keys.bytes)) == sum(map(len, entries))
    others = {key.decode().removeprefix(keys.base).split(":")[0] for key in redis_client.scan_iter("*")}
    assert others == {"interactive", "bulk", "fleet", "bytes", "call"}
    assert all(retry_after > 0 for _, _, retry_after in refused)
    # Each within 50 ms, by the clock of a machine that has its processors for itself.
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    slowest = max(seconds for _, seconds, _ in refused)
    assert slowest < 0.05 * crowd

    with RawWorker(redis_server.url, keys):
        wait_until(lambda: not any(map(redis_client.xlen, keys.lanes)), 20, "the queue to drain")
    assert find_leaks(redis_client) == []
