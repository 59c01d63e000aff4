"""arq: a worker that polls a sorted set, results that are polled for.

What its page lets one tune: how many jobs run at once, how often both sides poll (half a second by default, which
would measure nothing but that), how many jobs are read at a time. Both run on uvloop.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import uvloop
from arq import create_pool
from arq.connections import RedisSettings

from bench.peers.rounds import DATA, URL, WAIT_S, async_window, serve

SETTINGS = RedisSettings.from_dsn(URL)
WORKER_POLL_S = 0.01
RESULT_POLL_S = int(os.environ.get("BENCH_POLL_MS", "100")) / 1000  # sooner, and the producer is busy asking
LOGS = {"version": 1, "disable_existing_loggers": True}  # else two lines for each job


async def echo(_context: dict[str, Any], data: str) -> str:
    return data


class WorkerSettings:
    functions: ClassVar = [echo]
    redis_settings = SETTINGS
    max_jobs = 256
    queue_read_limit = 256
    poll_delay = WORKER_POLL_S
    keep_result = 60
    log_results = False


def main() -> None:
    loop = uvloop.new_event_loop()
    pool = loop.run_until_complete(create_pool(SETTINGS))

    async def call() -> None:
        job = await pool.enqueue_job("echo", DATA)
        if job is None or await job.result(timeout=WAIT_S, poll_delay=RESULT_POLL_S) != DATA:
            raise RuntimeError("another answer than the question")

    serve(lambda count, in_flight: loop.run_until_complete(async_window(count, in_flight, call)))


if __name__ == "__main__":
    main()
