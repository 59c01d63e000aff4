"""Sends texts, and each refused one again when it was told to; prints what happened as JSON.

python -m support.stubborn_producer URL QUEUE SHARE COUNT
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from clipfleet.producer import Client
from clipfleet.schemas.errors import QueueFull

THREADS = 400


def main(url: str, queue: str, share: str, count: int) -> None:
    refused: list[float] = []
    with Client(url, queue=queue, timeout=90) as client:

        def ask(number: int) -> int:
            while True:
                try:
                    return len(client.embed_text(f"{share} asks for {number}").vector)
                except QueueFull as full:
                    refused.append(full.retry_after)
                    time.sleep(min(full.retry_after, 0.2))  # as it was told to

        with ThreadPoolExecutor(THREADS) as pool:
            answered = sum(1 for dimension in pool.map(ask, range(count)) if dimension)
    print(json.dumps({"answered": answered, "refused": len(refused), "least_retry_after": min(refused, default=0)}))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
