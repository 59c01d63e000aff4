"""The same work through clipfleet.

python -m bench.ours URL         a worker that serves ``echo`` alone, until it is killed
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from clipfleet.producer import requests
from clipfleet.worker import WorkerConfig, run

if TYPE_CHECKING:
    from clipfleet.producer import Client


def produce(client: Client, count: int, in_flight: int, data: bytes) -> float:
    """Send ``count`` requests, ``in_flight`` at a time; seconds until all results were received."""
    began = time.perf_counter()
    asked = (requests.echo(data) for _ in range(count))
    answered = sum(1 for result in client.map(asked, max_in_flight=in_flight, ordered=False) if result.ok)
    assert answered == count
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(run(WorkerConfig(redis_url=sys.argv[1], model="none", max_delay_ms=0, log_level="WARNING")))
