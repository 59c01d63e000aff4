"""A producer process that sends many requests at once: ``python -m support.burst URL QUEUE COUNT`` prints JSON.

It says it is ready with one line, and starts on a line from its parent.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from clipfleet.producer import AsyncClient, QueueFull


async def main(url: str, queue: str, count: int) -> None:
    async with AsyncClient(url, queue=queue, wait_for_worker=True, timeout=60) as client:
        outcomes: list[tuple[str, float, float]] = []

        async def one(number: int) -> None:
            began = time.monotonic()
            try:
                await client.submit("echo", {"data": number}, reply="key").accepted()
            except QueueFull as full:
                outcomes.append(("refused", time.monotonic() - began, full.retry_after))
            else:
                outcomes.append(("accepted", time.monotonic() - began, 0.0))

        await client.submit("echo", {"data": "warm"}, reply="key", lane="bulk").accepted()
        print("ready", flush=True)
        sys.stdin.readline()
        for first in range(0, count, 16):
            await asyncio.gather(*(one(number) for number in range(first, min(first + 16, count))))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
