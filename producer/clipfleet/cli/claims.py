"""A new collection is filled by one run: a claim in the queue's Redis, taken before anything is sent.

``clipfleet:{Q}:index:into:<collection>``   string: who has it, a space, and what people are told of that

Milvus alone cannot tell: two runs look for the collection before either of them has made it. The claim bridges that
time; once there are rows it is the collection itself that refuses others. So it may end by itself, after a day, and a
run that was killed finds its own again by what its manifest knows. A run that has switched its alias lets go of it.

SET, GET and PEXPIRE are all that it takes, which the users of ``deploy/redis`` may for this key.

Of one queue: rows in one collection are of one model, and so come from one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import redis

from clipfleet.cli.keys import claim_key
from clipfleet.schemas.text import visible

if TYPE_CHECKING:
    from clipfleet.schemas.keys import QueueKeys

__all__ = ["claim", "let_go"]

_FOR_S: Final = 24 * 3600


def claim(client: redis.Redis, keys: QueueKeys, collection: str, *, by: str, about: str) -> str | None:
    """Claim a new collection for ``by``, or go on with a claim of its own.

    Args:
        client: of the queue's Redis.
        keys: of the queue.
        collection: the new one.
        by: who claims it; a secret word without spaces, by which it is known again.
        about: what others are told of that.

    Returns:
        Nothing where it is ours, else what its owner has said of itself; None where this Redis lets us claim nothing.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    key, value = claim_key(keys, collection), f"{by} {about}".encode("utf-8", "backslashreplace")
    try:
        while not client.set(key, value, nx=True, ex=_FOR_S):
            holder = cast("bytes | None", client.get(key))
            if holder is None:
                continue  # it has ended just now
            owner, _, told = holder.decode("utf-8", "replace").partition(" ")
            if owner != by:
                return visible(told) or "another run"
            client.pexpire(key, _FOR_S * 1000)
            return ""
    except redis.exceptions.NoPermissionError:
        return None
    return ""


def let_go(client: redis.Redis, keys: QueueKeys, collection: str, *, by: str) -> None:
    """End a claim, if it is still one of ``by``.

    Raises:
        redis.RedisError: Redis does not answer, or refuses; the claim ends by itself.
    """
    key = claim_key(keys, collection)
    holder = cast("bytes | None", client.get(key))
    # A claim that ended in this very moment, and was another's at once, is lost to that one: who finds rows is refused
    # by these. It is not worth the rights that a transaction and a DEL need; to the past a key expires at once.
    if holder is not None and holder.decode("utf-8", "replace").partition(" ")[0] == by:
        client.pexpire(key, 0)
