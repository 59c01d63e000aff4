"""The least that could move requests over Redis: no lease, no validation, no capacity. A limit to compare with.

python -m bench.bare PORT        the worker's side, until it is killed
"""

from __future__ import annotations

import sys
import time

import msgpack
import redis

STREAM, GROUP, INBOX, BATCH = "bare", "workers", "bare:inbox", 64


def serve(port: int) -> None:
    client = redis.Redis(port=port, protocol=2)
    while True:
        found = client.xreadgroup(GROUP, "one", {STREAM: ">"}, count=BATCH, block=1000)
        for _, entries in found or ():
            ids = [entry_id for entry_id, _ in entries]
            answers = []
            for _, fields in entries:
                request = msgpack.unpackb(fields[b"m"])
                answers.append(msgpack.packb({"id": request["id"], "outputs": {"data": request["data"]}}))
            with client.pipeline(transaction=False) as pipe:
                pipe.xack(STREAM, GROUP, *ids)
                pipe.xdel(STREAM, *ids)
                pipe.rpush(INBOX, *answers)
                pipe.execute()


def prepare(client: redis.Redis) -> None:
    client.xgroup_create(STREAM, GROUP, "0", mkstream=True)


def produce(client: redis.Redis, count: int, in_flight: int, data: bytes) -> tuple[float, list[float]]:
    """Send ``count`` requests, ``in_flight`` at a time; seconds until all results were received, and of each."""
    began = time.perf_counter()
    sent_at: list[float] = []
    latencies: list[float] = []
    while len(latencies) < count:
        sent = len(sent_at)
        room = min(in_flight - (sent - len(latencies)), count - sent)
        if room > 0:
            now = time.perf_counter()
            with client.pipeline(transaction=False) as pipe:
                for number in range(sent, sent + room):
                    pipe.xadd(STREAM, {"m": msgpack.packb({"id": str(number), "data": data})})
                pipe.execute()
            sent_at += [now] * room
        first = client.blpop(INBOX, timeout=10)
        if first is None:
            raise TimeoutError("the bare worker does not answer")
        results = [msgpack.unpackb(raw) for raw in (first[1], *(client.lpop(INBOX, in_flight) or []))]
        now = time.perf_counter()
        latencies += [now - sent_at[int(result["id"])] for result in results]
    return time.perf_counter() - began, latencies


if __name__ == "__main__":
    serve(int(sys.argv[1]))
