"""dramatiq with its Redis broker and results in Redis, which it blocks on.

One process; threads and prefetch are set where the worker is started. Of the middleware, what a task that neither
fails nor hangs has no use for is left out, as its guide lets one choose it.
"""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.peers.rounds import DATA, URL, WAIT_S, serve, window

broker = RedisBroker(url=URL, middleware=[Results(backend=RedisBackend(url=URL))])
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def echo(data: str) -> str:
    return data


def receive(ticket: dramatiq.Message[str]) -> None:
    if ticket.get_result(block=True, timeout=int(WAIT_S * 1000)) != DATA:
        raise RuntimeError("another answer than the question")


if __name__ == "__main__":
    serve(lambda count, in_flight: window(count, in_flight, lambda: echo.send(DATA), receive))
