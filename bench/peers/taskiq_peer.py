"""taskiq with its Redis stream broker and results in Redis.

Its page: one worker process with as many async tasks, and as many entries read at a time, as are in flight; uvloop,
which it uses where it is installed; orjson, its quickest serializer. ``--no-parse`` spares the check of arguments,
acknowledging at reception a round trip. Results are polled for, 200 ms apart unless one says else.
"""

from __future__ import annotations

import os

import uvloop
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.peers.rounds import DATA, URL, WAIT_S, async_window, serve

RESULT_POLL_S = int(os.environ.get("BENCH_POLL_MS", "100")) / 1000  # sooner, and the producer is busy asking

broker = (
    RedisStreamBroker(URL, xread_count=256)
    .with_result_backend(RedisAsyncResultBackend(URL, keep_results=False, serializer=ORJSONSerializer()))
    .with_serializer(ORJSONSerializer())
)


@broker.task(task_name="echo")  # else named after the folder that each side was started in
async def echo(data: str) -> str:
    return data


def main() -> None:
    loop = uvloop.new_event_loop()
    loop.run_until_complete(broker.startup())

    async def call() -> None:
        task = await echo.kiq(DATA)
        result = await task.wait_result(check_interval=RESULT_POLL_S, timeout=WAIT_S)
        if result.return_value != DATA:
            raise RuntimeError("another answer than the question")

    serve(lambda count, in_flight: loop.run_until_complete(async_window(count, in_flight, call)))


if __name__ == "__main__":
    main()
