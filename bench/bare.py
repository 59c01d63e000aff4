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


def produce(client: redis.Redis, count: int, in_flight: int, data: bytes) -> float:
    """Send ``count`` requests, ``in_flight`` at a time; seconds until all results were received."""
    began = time.perf_counter()
    sent = received = 0
    while received < count:
        room = min(in_flight - (sent - received), count - sent)
        if room > 0:
            with client.pipeline(transaction=False) as pipe:
                for number in range(sent, sent + room):
                    pipe.xadd(STREAM, {"m": msgpack.packb({"id": str(number), "data": data})})
                pipe.execute()
            sent += room
        first = client.blpop(INBOX, timeout=10)
        results = [first[1], *(client.lpop(INBOX, in_flight) or [])]
        for raw in results:
            msgpack.unpackb(raw)
        received += len(results)
    return time.perf_counter() - began


if __name__ == "__main__":
    serve(int(sys.argv[1]))
