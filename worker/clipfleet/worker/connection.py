"""How a worker talks to Redis: short timeouts, and no retry behind anybody's back.

redis-py retries by default, which sends a blocking read twice and settles twice; every repetition here is decided by
code that knows whether the command may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["LOST", "REFUSED", "connect"]

# What says that the server is away or not itself, and that the same command may be sent again later.
LOST = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError, redis.BusyLoadingError, OSError)
# And whatever a server answers while its disk is full, its script is busy, its group flushed, its ACL being edited: a
# worker waits it out. If it died of it instead, its requests would be a death nearer to `poisoned`.
REFUSED = (*LOST, redis.ResponseError)


def connect(url: str, *, timeout_s: float = 3.0) -> Redis:
    """A client with its own pool.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        timeout_s: for connecting and for each answer; longer than any BLOCK that is asked for.
    """
    return redis.Redis.from_url(
        url,
        protocol=2,  # the replies are read as they come: one shape on every server
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        socket_keepalive=True,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
    )
