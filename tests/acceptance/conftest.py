from __future__ import annotations

from support.fixtures import keys, leftovers, make_proxy, make_redis, redis_binary, redis_client, redis_server

__all__ = ["keys", "leftovers", "make_proxy", "make_redis", "redis_binary", "redis_client", "redis_server"]
